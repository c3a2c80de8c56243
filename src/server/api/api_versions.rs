//! ApiVersions (key 18), versions 0 to 5.
//!
//! v1 throttle time; v3 flexible, the client's software, features (KIP-511, KIP-584); v4 features with a lowest
//! version of 0 (KIP-1022); v5 the cluster and node that the client means (KIP-1242).
//!
//! Any other version is answered in the form of v0 with UNSUPPORTED_VERSION and the versions of this API alone, so
//! that a newer client can ask again. The answer's header is v0 in all versions.

use klamm_metadata::feature_ranges;
use klamm_model::ErrorCode;
use klamm_protocol::messages::api_versions::{
    ApiVersion, ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};

use super::{Call, rows};
use crate::context::Context;

/// The newest version.
const VERSION_MAX: i16 = 5;
/// From this version on the client says what software it is.
const SOFTWARE_SINCE: i16 = 3;
/// From this version on features may have a lowest version of 0.
const ZERO_FEATURES_SINCE: i16 = 4;
/// From this version on the client says which node it means.
const NODE_SINCE: i16 = 5;

/// The version in which a request is read and answered: 0 where the one asked for is not served.
pub(crate) fn body_version(version: i16) -> i16 {
    if (0..=VERSION_MAX).contains(&version) { version } else { 0 }
}

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: ApiVersionsRequest,
) -> ApiVersionsResponse {
    if body_version(call.version) != call.version {
        let own = rows(&call.endpoint).filter(|entry| entry.key == call.key);
        return ApiVersionsResponse {
            error_code: ErrorCode::UnsupportedVersion.code(),
            api_keys: own.map(api_version).collect(),
            ..Default::default()
        };
    }
    if let Some(code) = refuse(context, call.version, &request) {
        return ApiVersionsResponse { error_code: code.code(), ..Default::default() };
    }
    let image = context.image();
    ApiVersionsResponse {
        api_keys: rows(&call.endpoint).map(api_version).collect(),
        supported_features: feature_ranges()
            .iter()
            .filter(|(_, lowest, _)| *lowest > 0 || call.version >= ZERO_FEATURES_SINCE)
            .map(|(name, lowest, highest)| SupportedFeatureKey {
                name: (*name).to_owned(),
                min_version: *lowest,
                max_version: *highest,
            })
            .collect(),
        finalized_features_epoch: image.offset,
        finalized_features: image
            .features
            .iter()
            // A directory of Apache Kafka brings features that are not built. Clients must not rely on them.
            .filter(|(name, level)| {
                feature_ranges()
                    .iter()
                    .any(|(known, lowest, highest)| known == name && (lowest..=highest).contains(level))
            })
            .map(|(name, level)| FinalizedFeatureKey {
                name: name.clone(),
                max_version_level: *level,
                min_version_level: *level,
            })
            .collect(),
        ..Default::default()
    }
}

fn api_version(entry: &super::Entry) -> ApiVersion {
    ApiVersion {
        api_key: entry.key as i16,
        min_version: *entry.versions.start(),
        max_version: *entry.versions.end(),
    }
}

fn refuse(context: &Context, version: i16, request: &ApiVersionsRequest) -> Option<ErrorCode> {
    let named =
        is_software_name(&request.client_software_name) && is_software_name(&request.client_software_version);
    if version >= SOFTWARE_SINCE && !named {
        return Some(ErrorCode::InvalidRequest);
    }
    if version < NODE_SINCE {
        return None;
    }
    match (&request.cluster_id, request.node_id) {
        (None, -1) => None,
        (Some(_), -1) | (None, _) => Some(ErrorCode::InvalidRequest),
        (Some(cluster), node) if *cluster == context.image().cluster_id && node == context.node_id.0 => None,
        (Some(_), _) => Some(ErrorCode::RebootstrapRequired),
    }
}

/// `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?` (KIP-511).
fn is_software_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::is_software_name;

    #[test]
    fn software_names_follow_the_protocol_guide() {
        for good in ["a", "apache-kafka-java", "1.0", "a.b-c"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "a/b", "ä"] {
            assert!(!is_software_name(bad), "{bad:?}");
        }
    }
}
