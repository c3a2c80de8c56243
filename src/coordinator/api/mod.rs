//! The requests as the server hands them over: arguments are checked that need no group, topics are looked
//! up, and the forms of old versions are turned into that of today and back.

mod admin;
mod membership;
mod offset_commit;
mod offset_fetch;
mod repeats;
mod transaction_admin;
mod transactions;
mod txn_offset_commit;

use klamm_model::ErrorCode;

use crate::group::Reply;

pub use repeats::Repeats;
pub use transactions::Question;

/// The error of a reply that is not of the kind that was asked for.
fn error_of(reply: &Reply) -> ErrorCode {
    match reply {
        Reply::Refused(error) => *error,
        _ => ErrorCode::UnknownServerError,
    }
}

/// The error of a list from which a partition is missing. A client that lists asks all nodes, and has none to look
/// for: it is told to come again.
fn incomplete(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::NotCoordinator => ErrorCode::CoordinatorLoadInProgress,
        error => error,
    }
}
