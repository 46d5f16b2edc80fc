//! Agents, controllers and what connects them, put together.

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
