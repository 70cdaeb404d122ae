//! A panic as a value.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs a future to its end; an error has the words of its panic.
pub(crate) struct Caught<F: ?Sized>(pub Pin<Box<F>>);

impl<F: Future + ?Sized> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(words(&*panic))),
        }
    }
}

/// What a panic said.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => (*words).to_owned(),
        (None, Some(words)) => words.clone(),
        (None, None) => "a panic without words".to_owned(),
    }
}
