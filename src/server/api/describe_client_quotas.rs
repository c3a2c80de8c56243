//! DescribeClientQuotas (key 48), versions 0 to 1 (KIP-546): the limits of the entities that a filter names.
//!
//! v1 flexible.

use std::collections::BTreeSet;

use klamm_metadata::QuotaEntity;
use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_client_quotas::{
    ComponentData, DescribeClientQuotasRequest, DescribeClientQuotasResponse, EntityData, EntryData,
    ValueData,
};

use super::Call;
use crate::context::Context;

const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const SPECIFIED: i8 = 2;

const TYPES: [&str; 3] = ["user", "client-id", "ip"];

pub(crate) async fn handle(
    context: &Context,
    _: &Call,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    if let Err((code, message)) = check(&request.components) {
        return DescribeClientQuotasResponse {
            error_code: code.code(),
            error_message: Some(message),
            entries: None,
            ..Default::default()
        };
    }
    let image = context.image();
    let quotas = image.kept.client_quotas.iter().filter(|(entity, _)| is_meant(entity, &request));
    let entries = quotas.map(|(entity, limits)| EntryData {
        entity: entity
            .iter()
            .map(|(entity_type, entity_name)| EntityData {
                entity_type: entity_type.clone(),
                entity_name: entity_name.clone(),
            })
            .collect(),
        values: limits.iter().map(|(key, value)| ValueData { key: key.clone(), value: *value }).collect(),
    });
    DescribeClientQuotasResponse {
        // Kafka writes an empty message beside no error.
        error_message: Some(String::new()),
        entries: Some(entries.collect()),
        ..Default::default()
    }
}

/// The order of the checks and their words were observed on Kafka 4.4.0.
fn check(components: &[ComponentData]) -> Result<(), (ErrorCode, String)> {
    let invalid = |message: &str| Err((ErrorCode::InvalidRequest, message.to_owned()));
    let mut seen = BTreeSet::new();
    for ComponentData { entity_type, match_type, r#match: name, .. } in components {
        if entity_type.is_empty() {
            return invalid("Invalid empty entity type.");
        }
        if !seen.insert(entity_type.as_str()) {
            return invalid(&format!(
                "Entity type {entity_type} cannot appear more than once in the filter."
            ));
        }
        if !TYPES.contains(&entity_type.as_str()) {
            let message = format!("Unsupported entity type {entity_type}");
            return Err((ErrorCode::UnsupportedVersion, message));
        }
        match (*match_type, name) {
            (EXACT, None) => {
                return invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.");
            }
            (DEFAULT, Some(_)) => {
                return invalid("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.");
            }
            (SPECIFIED, Some(_)) => {
                return invalid("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.");
            }
            (EXACT | DEFAULT | SPECIFIED, _) => {}
            (other, _) => return invalid(&format!("Unknown match type {other}")),
        }
    }
    if seen.len() > 1 && seen.contains("ip") {
        return invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or \
             clientId filter component.",
        );
    }
    Ok(())
}

/// Whether each component of the filter fits a part of the entity and, if it is strict, no part is left over.
fn is_meant(entity: &QuotaEntity, request: &DescribeClientQuotasRequest) -> bool {
    let fits = |component: &ComponentData| {
        let part = entity.iter().find(|(kind, _)| *kind == component.entity_type);
        part.is_some_and(|(_, name)| match component.match_type {
            EXACT => *name == component.r#match,
            DEFAULT => name.is_none(),
            _ => true,
        })
    };
    request.components.iter().all(fits) && (!request.strict || entity.len() == request.components.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(entity_type: &str, match_type: i8, name: Option<&str>) -> ComponentData {
        ComponentData { entity_type: entity_type.to_owned(), match_type, r#match: name.map(str::to_owned) }
    }

    fn meant(components: Vec<ComponentData>, strict: bool) -> Vec<&'static str> {
        let named = |kind: &str, name: Option<&str>| (kind.to_owned(), name.map(str::to_owned));
        let request = DescribeClientQuotasRequest { components, strict };
        let entities = [
            ("c", vec![named("client-id", Some("c"))]),
            ("*", vec![named("client-id", None)]),
            ("u", vec![named("user", Some("u"))]),
            ("cu", vec![named("client-id", Some("c")), named("user", Some("u"))]),
        ];
        entities.into_iter().filter(|(_, entity)| is_meant(entity, &request)).map(|(name, _)| name).collect()
    }

    /// As observed on Kafka 4.4.0.
    #[test]
    fn a_filter_finds_what_it_finds_in_kafka() {
        assert_eq!(meant(vec![], false), ["c", "*", "u", "cu"]);
        assert!(meant(vec![], true).is_empty());
        assert_eq!(meant(vec![component("user", SPECIFIED, None)], false), ["u", "cu"]);
        assert_eq!(meant(vec![component("user", SPECIFIED, None)], true), ["u"]);
        assert_eq!(meant(vec![component("client-id", EXACT, Some("c"))], false), ["c", "cu"]);
        assert_eq!(meant(vec![component("client-id", DEFAULT, None)], false), ["*"]);
        let both = vec![component("user", EXACT, Some("u")), component("client-id", SPECIFIED, None)];
        assert_eq!(meant(both, true), ["cu"]);
    }
}
