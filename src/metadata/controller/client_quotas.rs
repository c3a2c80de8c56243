//! AlterClientQuotas (KIP-546): limits for users, clients and addresses. What is refused, in which words, was observed
//! on Kafka 4.4.0.

use std::collections::BTreeMap;
use std::net::IpAddr;

use klamm_model::ErrorCode;
use klamm_protocol::messages::alter_client_quotas::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, EntityData, EntryDataRequest, EntryDataResponse,
    OpData,
};
use klamm_protocol::records::cluster_metadata::{ClientQuotaRecord, MetadataRecord, client_quota_record};

use super::Refusal;
use crate::image::Image;
use crate::kept::QuotaEntity;

/// The types of entities, as records and requests name them.
const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";

/// How far a value may be above a whole number and still count as one.
const WHOLE_WITHIN: f64 = 1e-6;

/// What a limit may be.
enum QuotaType {
    /// Any number above 0.
    Double,
    /// A whole number above 0, up to a limit whose name is told.
    Whole { max: f64, name: &'static str },
}

const LONG: QuotaType = QuotaType::Whole { max: i64::MAX as f64, name: "a LONG" };
const INT: QuotaType = QuotaType::Whole { max: i32::MAX as f64, name: "an INT" };

/// Sets and removes limits, each entity by itself. An entity that is named twice is refused, once.
pub fn alter_client_quotas(
    image: &Image,
    request: &AlterClientQuotasRequest,
) -> (Vec<MetadataRecord>, AlterClientQuotasResponse) {
    let mut by_entity: BTreeMap<QuotaEntity, Vec<&EntryDataRequest>> = BTreeMap::new();
    for entry in &request.entries {
        by_entity.entry(entity_of(entry)).or_default().push(entry);
    }
    let mut records = Vec::new();
    let mut response = AlterClientQuotasResponse::default();
    for (entity, entries) in by_entity {
        let (error_code, error_message) = match change(image, &entity, &entries) {
            Ok(changes) => {
                records.extend(changes);
                (ErrorCode::None.code(), None)
            }
            Err(refusal) => (refusal.code.code(), Some(refusal.message)),
        };
        let part = |(entity_type, entity_name): &(String, Option<String>)| EntityData {
            entity_type: entity_type.clone(),
            entity_name: entity_name.clone(),
        };
        let entity = entity.iter().map(part).collect();
        response.entries.push(EntryDataResponse { error_code, error_message, entity });
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

/// The entity that an entry names; of a type that stands twice, the last name counts.
fn entity_of(entry: &EntryDataRequest) -> QuotaEntity {
    let parts = entry
        .entity
        .iter()
        .map(|EntityData { entity_type, entity_name, .. }| (entity_type.clone(), entity_name.clone()));
    parts.collect::<BTreeMap<_, _>>().into_iter().collect()
}

fn change(
    image: &Image,
    entity: &QuotaEntity,
    entries: &[&EntryDataRequest],
) -> Result<Vec<MetadataRecord>, Refusal> {
    let ops: Vec<&OpData> = entries.iter().flat_map(|entry| &entry.ops).collect();
    let mut keys = std::collections::BTreeSet::new();
    if entries.len() > 1 || !ops.iter().all(|op| keys.insert(&op.key)) {
        let parts = entity.iter().map(|(kind, name)| format!("{kind}={}", name.as_deref().unwrap_or("null")));
        let parts = parts.collect::<Vec<_>>().join(", ");
        return Err(invalid(format!("Ignoring duplicate entity ClientQuotaEntity(entries={{{parts}}})")));
    }
    check_entity(entity)?;
    let part = |(entity_type, entity_name): &(String, Option<String>)| client_quota_record::EntityData {
        entity_type: entity_type.clone(),
        entity_name: entity_name.clone(),
    };
    let parts: Vec<client_quota_record::EntityData> = entity.iter().map(part).collect();
    let present = image.kept.client_quotas.get(entity);
    let mut records = Vec::new();
    for op in ops {
        let before = present.and_then(|limits| limits.get(&op.key).copied());
        let after = (!op.remove).then_some(op.value);
        if let Some(limit) = after {
            check_limit(entity, &op.key, limit)?;
        }
        // What is so already needs no record.
        if before != after {
            let (entity, key) = (parts.clone(), op.key.clone());
            records.push(ClientQuotaRecord { entity, key, value: op.value, remove: op.remove }.into());
        }
    }
    Ok(records)
}

fn check_entity(entity: &QuotaEntity) -> Result<(), Refusal> {
    if entity.is_empty() {
        return Err(invalid("Invalid empty client quota entity"));
    }
    for (kind, name) in entity {
        if ![USER, CLIENT_ID, IP].contains(&kind.as_str()) {
            return Err(invalid(format!("Unhandled client quota entity type: {kind}")));
        }
        if name.as_deref() == Some("") {
            return Err(invalid(format!("Empty {kind} not supported")));
        }
    }
    if entity.len() > 1 && is_address(entity) {
        return Err(invalid(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        ));
    }
    // Apache Kafka resolves names of hosts here; the controller of Klamm asks nobody while it decides.
    match entity.iter().find(|(kind, _)| kind == IP) {
        Some((_, Some(address))) if address.parse::<IpAddr>().is_err() => {
            Err(invalid(format!("{address} is not a valid IP or resolvable host.")))
        }
        _ => Ok(()),
    }
}

fn check_limit(entity: &QuotaEntity, key: &str, value: f64) -> Result<(), Refusal> {
    let kind = match (key, is_address(entity)) {
        ("producer_byte_rate" | "consumer_byte_rate", false) => LONG,
        ("request_percentage" | "controller_mutation_rate", false) => QuotaType::Double,
        ("connection_creation_rate", true) => INT,
        _ => return Err(invalid(format!("Invalid configuration key {key}"))),
    };
    if !value.is_finite() {
        return Err(invalid(format!("Quota {key} must be a finite number")));
    }
    if value <= 0.0 {
        return Err(invalid(format!("Quota {key} must be greater than 0")));
    }
    match kind {
        QuotaType::Whole { max, name } if value > max => {
            Err(invalid(format!("Proposed value for {key} is too large for {name}.")))
        }
        QuotaType::Whole { .. } if value.fract() > WHOLE_WITHIN => {
            Err(invalid(format!("{key} cannot be a fractional value.")))
        }
        QuotaType::Whole { .. } | QuotaType::Double => Ok(()),
    }
}

fn is_address(entity: &QuotaEntity) -> bool {
    entity.iter().any(|(kind, _)| kind == IP)
}

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(entity: &[(&str, Option<&str>)], ops: &[(&str, f64)]) -> EntryDataRequest {
        let part = |(kind, name): &(&str, Option<&str>)| EntityData {
            entity_type: (*kind).to_owned(),
            entity_name: name.map(str::to_owned),
        };
        let op = |(key, value): &(&str, f64)| OpData { key: (*key).to_owned(), value: *value, remove: false };
        EntryDataRequest { entity: entity.iter().map(part).collect(), ops: ops.iter().map(op).collect() }
    }

    fn ask(entries: Vec<EntryDataRequest>, validate_only: bool) -> (usize, Vec<(i16, Option<String>)>) {
        let request = AlterClientQuotasRequest { entries, validate_only };
        let (records, response) = alter_client_quotas(&Image::empty("test"), &request);
        let results = response.entries.into_iter().map(|entry| (entry.error_code, entry.error_message));
        (records.len(), results.collect())
    }

    fn refusal(entity: &[(&str, Option<&str>)], ops: &[(&str, f64)]) -> Option<String> {
        let (records, mut results) = ask(vec![entry(entity, ops)], false);
        let (code, message) = results.remove(0);
        assert_eq!((code == 0, records == ops.len()), (message.is_none(), message.is_none()));
        message
    }

    /// Each message is what Apache Kafka 4.4.0 answered to the same request.
    #[test]
    fn limits_are_judged_as_kafka_judges_them() {
        let (user, client) = ([("user", Some("u"))], [("client-id", Some("c"))]);
        let address = [("ip", Some("10.0.0.1"))];
        for (entity, ops) in [
            (&user[..], &[("producer_byte_rate", 1e18), ("request_percentage", 1.5)][..]),
            (&[("user", None), ("client-id", Some("d"))], &[("controller_mutation_rate", 5.0)]),
            (&client, &[("consumer_byte_rate", 1.0000000001)]),
            (&address, &[("connection_creation_rate", 5.0)]),
            (&[("ip", None)], &[("connection_creation_rate", 5.0)]),
            (&user, &[]),
        ] {
            assert_eq!(refusal(entity, ops), None, "{entity:?} {ops:?}");
        }
        for (entity, op, message) in [
            (&client[..], ("no_such", 1.0), "Invalid configuration key no_such"),
            (
                &client,
                ("connection_creation_rate", 1.0),
                "Invalid configuration key connection_creation_rate",
            ),
            (&client, ("producer_byte_rate", 0.0), "Quota producer_byte_rate must be greater than 0"),
            (&client, ("producer_byte_rate", 1.5), "producer_byte_rate cannot be a fractional value."),
            (&client, ("producer_byte_rate", f64::NAN), "Quota producer_byte_rate must be a finite number"),
            (
                &client,
                ("consumer_byte_rate", 1e19),
                "Proposed value for consumer_byte_rate is too large for a LONG.",
            ),
            (
                &address,
                ("connection_creation_rate", 1e10),
                "Proposed value for connection_creation_rate is too large for an INT.",
            ),
            (
                &[("ip", Some("here"))],
                ("connection_creation_rate", 1.0),
                "here is not a valid IP or resolvable host.",
            ),
            (&[], ("producer_byte_rate", 1.0), "Invalid empty client quota entity"),
            (
                &[("planet", Some("x"))],
                ("producer_byte_rate", 1.0),
                "Unhandled client quota entity type: planet",
            ),
            (&[("user", Some(""))], ("producer_byte_rate", 1.0), "Empty user not supported"),
        ] {
            assert_eq!(refusal(entity, &[op]).as_deref(), Some(message), "{entity:?} {op:?}");
        }
    }

    #[test]
    fn what_is_so_already_leaves_no_record() {
        let mut image = Image::empty("test");
        let entity = [("user", Some("u"))];
        let mut ask = |op: (&str, f64), remove: bool| {
            let mut entry = entry(&entity, &[op]);
            entry.ops[0].remove = remove;
            let request = AlterClientQuotasRequest { entries: vec![entry], validate_only: false };
            let (records, response) = alter_client_quotas(&image, &request);
            assert_eq!(response.entries[0].error_code, 0);
            for record in &records {
                image = crate::apply::apply(&image, record);
            }
            records.len()
        };
        assert_eq!(ask(("producer_byte_rate", 5.0), true), 0);
        assert_eq!(ask(("no_such", 5.0), true), 0);
        assert_eq!(ask(("producer_byte_rate", 5.0), false), 1);
        assert_eq!(ask(("producer_byte_rate", 5.0), false), 0);
        assert_eq!(ask(("producer_byte_rate", 6.0), false), 1);
        assert_eq!(ask(("producer_byte_rate", 0.0), true), 1);
    }

    #[test]
    fn an_entity_that_is_named_twice_is_refused_once_and_others_are_not() {
        let twice = entry(&[("user", Some("z"))], &[("producer_byte_rate", 1.0)]);
        let other = entry(&[("user", Some("y"))], &[("producer_byte_rate", 1.0)]);
        let (records, results) = ask(vec![twice.clone(), other.clone(), twice], false);
        let message = "Ignoring duplicate entity ClientQuotaEntity(entries={user=z})";
        assert_eq!((records, results), (1, vec![(0, None), (42, Some(message.to_owned()))]));
        let key_twice = [("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)];
        assert_eq!(refusal(&[("user", Some("z"))], &key_twice).as_deref(), Some(message));
        assert_eq!(ask(vec![other], true), (0, vec![(0, None)]));
    }
}
