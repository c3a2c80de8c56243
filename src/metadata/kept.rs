//! What the cluster agreed on about who may do what, and how much: client quotas, which brokers enforce, and what
//! nothing acts upon yet: users with SCRAM passwords, access control entries and delegation tokens. The latter two come
//! with a directory that Apache Kafka wrote, and must not be lost for that.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use klamm_model::Uuid;
use klamm_protocol::records::cluster_metadata::{
    AccessControlEntryRecord, ClientQuotaRecord, DelegationTokenRecord, MetadataRecord,
    UserScramCredentialRecord, client_quota_record::EntityData,
};

/// Records that are kept, each under what a later record replaces or removes it by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Passwords, by user and Kafka's number of the mechanism.
    pub scram_credentials: OrdMap<(String, i8), Arc<UserScramCredentialRecord>>,
    /// Access control entries, by their ids.
    pub access_control_entries: OrdMap<Uuid, Arc<AccessControlEntryRecord>>,
    /// Client quotas: by whom they bind, the limits by their keys.
    pub client_quotas: OrdMap<QuotaEntity, Arc<BTreeMap<String, f64>>>,
    /// Delegation tokens, by their ids.
    pub delegation_tokens: OrdMap<String, Arc<DelegationTokenRecord>>,
}

/// Whom a quota binds: pairs of type (`user`, `client-id`, `ip`) and name, sorted; no name stands for all that
/// have no quota of their own (KIP-546).
pub type QuotaEntity = Vec<(String, Option<String>)>;

impl Kept {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.scram_credentials.is_empty()
            && self.access_control_entries.is_empty()
            && self.client_quotas.is_empty()
            && self.delegation_tokens.is_empty()
    }

    /// Takes in a record of one of these kinds; false for any other.
    pub(crate) fn apply(&mut self, record: &MetadataRecord) -> bool {
        match record {
            MetadataRecord::UserScramCredential(record) => {
                let key = (record.name.clone(), record.mechanism);
                self.scram_credentials.insert(key, Arc::new(record.clone()));
            }
            MetadataRecord::RemoveUserScramCredential(record) => {
                self.scram_credentials.remove(&(record.name.clone(), record.mechanism));
            }
            MetadataRecord::AccessControlEntry(record) => {
                self.access_control_entries.insert(record.id, Arc::new(record.clone()));
            }
            MetadataRecord::RemoveAccessControlEntry(record) => {
                self.access_control_entries.remove(&record.id);
            }
            MetadataRecord::ClientQuota(record) => self.apply_quota(record),
            MetadataRecord::DelegationToken(record) => {
                self.delegation_tokens.insert(record.token_id.clone(), Arc::new(record.clone()));
            }
            MetadataRecord::RemoveDelegationToken(record) => {
                self.delegation_tokens.remove(&record.token_id);
            }
            _ => return false,
        }
        true
    }

    fn apply_quota(&mut self, record: &ClientQuotaRecord) {
        let parts = record.entity.iter();
        let mut entity: QuotaEntity =
            parts.map(|part| (part.entity_type.clone(), part.entity_name.clone())).collect();
        entity.sort();
        let limits = Arc::make_mut(self.client_quotas.entry(entity.clone()).or_default());
        if record.remove {
            limits.remove(&record.key);
        } else {
            limits.insert(record.key.clone(), record.value);
        }
        if limits.is_empty() {
            self.client_quotas.remove(&entity);
        }
    }

    /// The records that make this again.
    pub(crate) fn records(&self) -> Vec<MetadataRecord> {
        let mut records: Vec<MetadataRecord> = Vec::new();
        records.extend(self.scram_credentials.values().map(|record| (**record).clone().into()));
        for (entity, limits) in &self.client_quotas {
            let part = |(entity_type, entity_name): &(String, Option<String>)| EntityData {
                entity_type: entity_type.clone(),
                entity_name: entity_name.clone(),
            };
            let entity: Vec<EntityData> = entity.iter().map(part).collect();
            records.extend(limits.iter().map(|(key, value)| {
                let (entity, key) = (entity.clone(), key.clone());
                MetadataRecord::from(ClientQuotaRecord { entity, key, value: *value, remove: false })
            }));
        }
        records.extend(self.access_control_entries.values().map(|record| (**record).clone().into()));
        records.extend(self.delegation_tokens.values().map(|record| (**record).clone().into()));
        records
    }
}

#[cfg(test)]
mod tests {
    use klamm_protocol::records::cluster_metadata::{
        RemoveAccessControlEntryRecord, RemoveDelegationTokenRecord, RemoveUserScramCredentialRecord,
    };

    use super::*;

    fn quota(entity: &[(&str, Option<&str>)], key: &str, value: f64, remove: bool) -> MetadataRecord {
        let part = |(entity_type, entity_name): &(&str, Option<&str>)| EntityData {
            entity_type: (*entity_type).to_owned(),
            entity_name: entity_name.map(str::to_owned),
        };
        let entity = entity.iter().map(part).collect();
        ClientQuotaRecord { entity, key: key.to_owned(), value, remove }.into()
    }

    fn one_of_each() -> Vec<MetadataRecord> {
        let user = |mechanism, iterations| UserScramCredentialRecord {
            name: "ann".to_owned(),
            mechanism,
            iterations,
            ..Default::default()
        };
        let entry = |id, principal: &str| AccessControlEntryRecord {
            id: Uuid([id; 16]),
            principal: principal.to_owned(),
            ..Default::default()
        };
        vec![
            user(1, 4096).into(),
            user(2, 8192).into(),
            quota(&[("user", Some("ann")), ("client-id", None)], "producer_byte_rate", 1024.5, false),
            quota(&[("user", None)], "request_percentage", 50.0, false),
            entry(1, "User:ann").into(),
            entry(2, "User:bob").into(),
            DelegationTokenRecord { token_id: "t".to_owned(), ..Default::default() }.into(),
        ]
    }

    /// The records of a snapshot replace the log. What one of these kinds loses there is a user locked out, or one
    /// let in, after the way back to Apache Kafka.
    #[test]
    fn what_is_kept_comes_back_from_its_records() {
        let mut kept = Kept::default();
        for record in one_of_each() {
            assert!(kept.apply(&record), "{record:?}");
        }
        let mut again = Kept::default();
        for record in kept.records() {
            assert!(again.apply(&record), "{record:?}");
        }
        assert_eq!(again, kept);
        assert_eq!(kept.records().len(), one_of_each().len());
    }

    #[test]
    fn later_records_replace_and_remove_earlier_ones() {
        let mut kept = Kept::default();
        one_of_each().iter().for_each(|record| assert!(kept.apply(record)));
        // The parts of an entity come in any order.
        kept.apply(&quota(&[("client-id", None), ("user", Some("ann"))], "producer_byte_rate", 7.0, false));
        assert_eq!(kept.client_quotas.len(), 2);
        let ann = vec![("client-id".to_owned(), None), ("user".to_owned(), Some("ann".to_owned()))];
        assert_eq!(kept.client_quotas[&ann]["producer_byte_rate"], 7.0);
        let removals: [MetadataRecord; 7] = [
            RemoveUserScramCredentialRecord { name: "ann".to_owned(), mechanism: 1 }.into(),
            RemoveUserScramCredentialRecord { name: "ann".to_owned(), mechanism: 2 }.into(),
            quota(&[("user", Some("ann")), ("client-id", None)], "producer_byte_rate", 0.0, true),
            quota(&[("user", None)], "request_percentage", 0.0, true),
            RemoveAccessControlEntryRecord { id: Uuid([1; 16]) }.into(),
            RemoveAccessControlEntryRecord { id: Uuid([2; 16]) }.into(),
            RemoveDelegationTokenRecord { token_id: "t".to_owned() }.into(),
        ];
        for removal in &removals {
            assert!(!kept.is_empty());
            assert!(kept.apply(removal));
        }
        assert!(kept.is_empty(), "{kept:?}");
        // To remove what is not there changes nothing.
        removals.iter().for_each(|removal| assert!(kept.apply(removal)));
        assert!(kept.is_empty() && kept.records().is_empty());
    }
}
