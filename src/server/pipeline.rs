//! The requests of one connection that are under way, in their order.

use std::collections::VecDeque;

use crate::api::Closed;

/// How many requests of one connection may wait for their acknowledgement. Clients send five by default; beyond
/// this the socket is not read.
const IN_FLIGHT_MAX: usize = 128;

/// Answers under way, and behind them at most one request that has to ask somebody before its records are
/// appended: those that follow it wait, so that all are appended in order, but the answers before it do not.
pub(crate) struct Pipeline<A, B> {
    answers: VecDeque<A>,
    beginning: Option<B>,
}

/// What was reached.
pub(crate) enum Step<T> {
    /// The oldest request has its answer.
    Answered(T),
    /// The request that asked has begun: the next one may.
    Begun,
}

impl<A: Future + Unpin, B: Future<Output = Result<A, Closed>> + Unpin> Pipeline<A, B> {
    pub(crate) fn new() -> Pipeline<A, B> {
        Pipeline { answers: VecDeque::new(), beginning: None }
    }

    /// Whether the next request may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.answers.len() < IN_FLIGHT_MAX && self.beginning.is_none()
    }

    /// Whether a request asks before it begins.
    pub(crate) fn is_beginning(&self) -> bool {
        self.beginning.is_some()
    }

    /// Whether nothing waits for its answer that has begun.
    pub(crate) fn is_idle(&self) -> bool {
        self.answers.is_empty()
    }

    /// A request that has begun.
    pub(crate) fn push(&mut self, answer: A) {
        self.answers.push_back(answer);
    }

    /// A request that asks first. Only where [`Pipeline::has_room`].
    pub(crate) fn begin(&mut self, beginning: B) {
        self.beginning = Some(beginning);
    }

    /// The oldest request under way.
    pub(crate) fn pop(&mut self) -> Option<A> {
        self.answers.pop_front()
    }

    /// Waits for the next step; for ever if nothing is under way. May be dropped at any await.
    pub(crate) async fn step(&mut self) -> Result<Step<A::Output>, Closed> {
        tokio::select! {
            biased;
            answer = of(self.answers.front_mut()) => {
                self.answers.pop_front();
                Ok(Step::Answered(answer))
            }
            begun = of(self.beginning.as_mut()) => {
                self.beginning = None;
                self.answers.push_back(begun?);
                Ok(Step::Begun)
            }
        }
    }
}

async fn of<F: Future + Unpin>(future: Option<&mut F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use klamm_io::BoxFuture;
    use tokio::sync::oneshot;

    use super::*;

    type Answer = oneshot::Receiver<u32>;

    /// An answer, and who gives it.
    fn answer() -> (oneshot::Sender<u32>, Answer) {
        oneshot::channel()
    }

    async fn answered(pipeline: &mut Pipeline<Answer, BoxFuture<'static, Result<Answer, Closed>>>) -> u32 {
        match pipeline.step().await {
            Ok(Step::Answered(answer)) => answer.expect("an answer"),
            Ok(Step::Begun) => panic!("a request has begun"),
            Err(_) => panic!("the connection is closed"),
        }
    }

    #[tokio::test]
    async fn an_answer_is_ready_while_the_request_behind_it_asks() {
        let mut pipeline = Pipeline::new();
        let ((give_first, first), (give_second, second)) = (answer(), answer());
        let (begin, may_begin) = oneshot::channel::<()>();
        pipeline.push(first);
        let asks: BoxFuture<'static, Result<Answer, Closed>> = Box::pin(async move {
            may_begin.await.map_err(|_| Closed::Refused)?;
            Ok(second)
        });
        pipeline.begin(asks);
        // The third one must not be appended before the second.
        assert!(!pipeline.has_room() && pipeline.is_beginning());
        give_first.send(1).unwrap();
        assert_eq!(answered(&mut pipeline).await, 1);
        assert!(pipeline.is_idle() && !pipeline.has_room());
        {
            let step = std::pin::pin!(pipeline.step());
            assert!(matches!(polled(step), Poll::Pending));
        }
        begin.send(()).unwrap();
        assert!(matches!(pipeline.step().await, Ok(Step::Begun)));
        assert!(pipeline.has_room() && !pipeline.is_idle());
        give_second.send(2).unwrap();
        assert_eq!(answered(&mut pipeline).await, 2);
    }

    #[tokio::test]
    async fn answers_keep_the_order_of_the_requests() {
        let mut pipeline = Pipeline::new();
        let ((give_first, first), (give_second, second)) = (answer(), answer());
        pipeline.push(first);
        pipeline.begin(Box::pin(std::future::ready(Ok(second))) as BoxFuture<'static, _>);
        give_second.send(2).unwrap();
        assert!(matches!(pipeline.step().await, Ok(Step::Begun)));
        give_first.send(1).unwrap();
        assert_eq!((answered(&mut pipeline).await, answered(&mut pipeline).await), (1, 2));
    }

    fn polled<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
