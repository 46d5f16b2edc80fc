//! Tests of agents, controllers and their connections together.

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod counting;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod trial;
