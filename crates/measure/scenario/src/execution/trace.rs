//! All requests and answers of one user, for people who write a scenario.

use fathom_model::units::Nanos;

/// A request with its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchange {
    /// The name of the step.
    pub step: String,
    /// As sent; empty if it could not be sent.
    pub request: Vec<u8>,
    /// As received, but with a decoded body; empty if none arrived.
    pub answer: Vec<u8>,
    /// From the first byte of the step's request on.
    pub took: Nanos,
    /// Why no answer arrived, or why no request was sent.
    pub failure: Option<String>,
    /// The expectations, with the reason of each failure.
    pub expectations: Vec<(String, Option<String>)>,
    /// The taken values, with their names.
    pub values: Vec<(String, Vec<u8>)>,
}

impl Exchange {
    /// Whether anything failed.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.failure.is_some() || self.expectations.iter().any(|(_, why)| why.is_some())
    }
}

/// The exchanges of a user, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Trace(pub(crate) Vec<Exchange>);

impl Trace {
    pub(crate) fn add_request(&mut self, step: &str, request: &[u8]) {
        self.0.push(Exchange { step: step.to_owned(), request: request.to_vec(), ..Exchange::default() });
    }

    fn last(&mut self, change: impl FnOnce(&mut Exchange)) {
        if let Some(exchange) = self.0.last_mut() {
            change(exchange);
        }
    }

    pub(crate) fn add_answer(&mut self, answer: &[u8], took: Nanos) {
        self.last(|exchange| (exchange.answer, exchange.took) = (answer.to_vec(), took));
    }

    pub(crate) fn add_failure(&mut self, cause: &str) {
        self.last(|exchange| exchange.failure = Some(cause.to_owned()));
    }

    pub(crate) fn add_expectation(&mut self, what: &str, why: Option<&str>) {
        self.last(|exchange| exchange.expectations.push((what.to_owned(), why.map(str::to_owned))));
    }

    pub(crate) fn add_value(&mut self, name: &str, value: &[u8]) {
        self.last(|exchange| exchange.values.push((name.to_owned(), value.to_vec())));
    }
}
