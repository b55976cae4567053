//! Nodes that are code of the application: functions and futures. Their panics are caught here.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use pin_project::pin_project;

use super::handle::DataNode;
use super::handle::sealed::Put;
use super::scope::Scope;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::discard;

/// The function of a user node, which all instances share.
pub(crate) type UserFn = Box<dyn Fn(&mut Scope<'_>) -> Result<()> + Send + Sync>;

/// The failure of a node's function or future.
pub(crate) enum UserError {
    Error(Error),
    Panicked(Error),
}

/// Runs code of the application. A panic is returned as an error.
#[inline(always)]
pub(crate) fn contained<T>(code: impl FnOnce() -> T) -> Result<T, UserError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(panicked)
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> UserError {
    let text = match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "with something that is no text".to_owned(),
    };
    // The payload belongs to the application, and may panic when it is dropped.
    discard(Some(payload));
    let text = format!("the function of a user node panicked: {text}");
    UserError::Panicked(Error::new(ErrorKind::Unexpected, None, text))
}

/// The function of a node with data. All instances share the function; each has its own data.
pub(crate) trait WithData: Send + Sync {
    /// Returns the memory for the data of a new instance, unset.
    fn new_data(&self) -> Data;
    /// Calls the function. Returns `None` if the data was not set.
    fn call(&self, data: &mut Data, scope: &mut Scope<'_>) -> Option<Result<()>>;
}

/// The data that an instance keeps for a node, boxed: an `Option` of the node's type.
pub(crate) type Data = Box<dyn Any + Send + Sync>;

pub(crate) struct Function<F, T> {
    function: F,
    data: PhantomData<fn(T)>,
}

impl<F, T> Function<F, T> {
    pub(crate) fn new(function: F) -> Function<F, T> {
        let data = PhantomData;
        Function { function, data }
    }
}

impl<F, T> WithData for Function<F, T>
where
    F: Fn(&mut Scope<'_>, &mut T) -> Result<()> + Send + Sync,
    T: Send + Sync + 'static,
{
    fn new_data(&self) -> Data {
        Box::new(None::<T>)
    }

    fn call(&self, data: &mut Data, scope: &mut Scope<'_>) -> Option<Result<()>> {
        let data = data.downcast_mut::<Option<T>>()?.as_mut()?;
        Some((self.function)(scope, data))
    }
}

impl<T: Send + Sync + 'static> Put for DataNode<T> {
    type Data = T;
    type Seat = Option<T>;

    fn put(seat: &mut Option<T>, data: T) -> Result<()> {
        *seat = Some(data);
        Ok(())
    }
}

/// The function of an async node, which makes the futures. All instances share it.
pub(crate) trait MakesFutures: Send + Sync {
    /// Returns the memory for the future of a new instance: the only allocation of an async node.
    fn new_body(self: Arc<Self>) -> AsyncBody;
}

/// The memory for a future in an instance. The mutex is never locked. It makes this type `Sync`,
/// although the future is only `Send`.
pub(crate) type AsyncBody = Mutex<Pin<Box<dyn RunsFutures>>>;

impl<F, T> MakesFutures for F
where
    F: Fn(&mut Scope<'_>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<()>> + Send + 'static,
{
    fn new_body(self: Arc<Self>) -> AsyncBody {
        let (make, future) = (self, None);
        Mutex::new(Box::pin(FutureSlot { make, future }))
    }
}

/// The future of an async node in an instance, without its type.
pub(crate) trait RunsFutures: Send {
    /// Calls the function, and keeps the future that it returns for this run.
    fn start(self: Pin<&mut Self>, scope: &mut Scope<'_>);
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>>;
    /// Drops the future, whether or not it has completed.
    fn stop(self: Pin<&mut Self>);
}

/// Returns the future in the mutex, without locking it.
pub(crate) fn own(future: &mut AsyncBody) -> Pin<&mut dyn RunsFutures> {
    future
        .get_mut()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
}

/// Drops the node's future. A panic of its destructor fails the node.
pub(crate) fn stop(future: &mut AsyncBody) -> Result<(), UserError> {
    contained(|| own(future).stop())
}

#[pin_project]
struct FutureSlot<F, T> {
    make: Arc<F>,
    #[pin]
    future: Option<T>,
}

impl<F, T> RunsFutures for FutureSlot<F, T>
where
    F: Fn(&mut Scope<'_>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<()>> + Send + 'static,
{
    fn start(self: Pin<&mut Self>, scope: &mut Scope<'_>) {
        let mut this = self.project();
        let future = (this.make)(scope);
        this.future.set(Some(future));
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.project().future.as_pin_mut() {
            Some(future) => future.poll(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn stop(self: Pin<&mut Self>) {
        self.project().future.set(None);
    }
}
