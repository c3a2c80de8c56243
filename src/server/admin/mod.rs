//! Metrics and health over HTTP, for whoever runs the node: two pages that a GET reads, `/metrics` and
//! `/health`. It is served only if `klamm.http.listener` says where.

mod health;
mod metrics;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use klamm_io::{Listener, Stream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::listener::ACCEPT_PAUSE;
use crate::stop::Stop;

/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// How many headers a request may have.
const HEADERS_MAX: usize = 64;

/// How many requests are served at once; others wait in the listener's queue.
const CONNECTIONS_MAX: usize = 16;

/// How long a client may take for its request, and for reading the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until `stop`, also while the node starts and looks for its cluster; `ready` says when it serves clients.
pub(crate) async fn serve(
    listener: Arc<dyn Listener>,
    context: Arc<Context>,
    ready: watch::Receiver<bool>,
    mut stop: Stop,
) {
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            biased;
            () = stop.requested() => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok(stream) => {
                    let answering = answer(stream, context.clone(), *ready.borrow());
                    connections.spawn(tokio::time::timeout(TIMEOUT, answering));
                }
                Err(error) => {
                    tracing::warn!("cannot take a connection on {}: {error}", listener.local_addr());
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// Answers one request and ends the connection: who scrapes comes every few seconds.
async fn answer(stream: Arc<dyn Stream>, context: Arc<Context>, is_ready: bool) {
    let Some(request) = read_request(&*stream).await else { return };
    let page = match request {
        Ok(path) => page(&path, &context, is_ready),
        Err(page) => page,
    };
    // A client that has gone does not miss its answer.
    let _ = stream.write_all(&page.bytes(), false).await;
}

/// An answer.
struct Page {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn text(status: &'static str, body: impl Into<String>) -> Page {
        Page { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    fn bytes(&self) -> Vec<u8> {
        let Page { status, content_type, body } = self;
        let len = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n\
             {body}"
        )
        .into_bytes()
    }
}

fn page(path: &str, context: &Arc<Context>, is_ready: bool) -> Page {
    match path {
        "/metrics" => Page {
            status: "200 OK",
            content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
            body: metrics::exposition(context),
        },
        "/health" => {
            let problems = health::problems(context, is_ready);
            if problems.is_empty() {
                let notes = health::notes(context);
                Page::text("200 OK", std::iter::once("ok\n".to_owned()).chain(notes).collect::<String>())
            } else {
                Page::text("503 Service Unavailable", problems.join("\n") + "\n")
            }
        }
        _ => Page::text("404 Not Found", "There are /metrics and /health.\n"),
    }
}

/// The path that is asked for, or what is wrong with the request. `None` if the client went.
async fn read_request(stream: &dyn Stream) -> Option<Result<String, Page>> {
    let mut head = BytesMut::with_capacity(1024);
    loop {
        head.reserve(1024);
        if !matches!(stream.read(&mut head).await, Ok(1..)) {
            return None;
        }
        let parsed = parse(&head);
        if parsed.is_some() {
            return parsed;
        }
        if head.len() >= HEAD_BYTES_MAX {
            let most = format!("The head of a request has at most {HEAD_BYTES_MAX} bytes.\n");
            return Some(Err(Page::text("431 Request Header Fields Too Large", most)));
        }
    }
}

/// `None` as long as the head is not complete.
fn parse(head: &[u8]) -> Option<Result<String, Page>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some("GET"), Some(target)) => Ok(target.split('?').next().unwrap_or_default().to_owned()),
            _ => Err(Page::text("405 Method Not Allowed", "Only GET is served.\n")),
        }),
        Err(error) => Some(Err(Page::text("400 Bad Request", format!("This is no HTTP/1.1: {error}.\n")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(head: &str) -> Option<Result<String, &'static str>> {
        parse(head.as_bytes()).map(|parsed| parsed.map_err(|page| page.status))
    }

    #[test]
    fn a_request_is_read_when_its_head_is_complete() {
        assert_eq!(outcome("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(outcome("GET /health?x=1 HTTP/1.1\r\nHost: x\r\n\r\n"), Some(Ok("/health".to_owned())));
        assert_eq!(outcome("POST /health HTTP/1.1\r\n\r\n"), Some(Err("405 Method Not Allowed")));
        assert_eq!(outcome("\u{0}\u{0}\u{0}\u{12}\u{0}\u{12}"), Some(Err("400 Bad Request")));
        let many = "A: b\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(outcome(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Some(Err("400 Bad Request")));
    }
}
