//! AlterUserScramCredentials (KIP-554): what users prove with SASL/SCRAM that they know, by mechanism. What is refused,
//! in which words, was observed on Kafka 4.4.0. A client sends no password but what PBKDF2 makes of it, and of that only
//! the two keys are kept from which it cannot be found again (RFC 5802).

use std::collections::BTreeMap;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use klamm_model::ErrorCode;
use klamm_protocol::messages::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use klamm_protocol::records::cluster_metadata::{
    MetadataRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord,
};
use sha2::{Digest, Sha256, Sha512};

use super::Refusal;
use super::features::METADATA_VERSION;
use crate::image::Image;

const SCRAM_SHA_256: i8 = 1;
const SCRAM_SHA_512: i8 = 2;

/// How often a password is hashed, for both mechanisms.
const ITERATIONS: std::ops::RangeInclusive<i32> = 4096..=16384;

/// The first `metadata.version` in which there are such records (3.5-IV2).
const METADATA_VERSION_MIN: i16 = 11;

/// Sets and removes credentials. A user has one change in a request at the most; deletions are looked at first, as in
/// Kafka.
pub fn alter_user_scram_credentials(
    image: &Image,
    request: &AlterUserScramCredentialsRequest,
) -> (Vec<MetadataRecord>, AlterUserScramCredentialsResponse) {
    let level = image.feature(METADATA_VERSION);
    let deletions =
        request.deletions.iter().map(|deletion| (deletion.name.as_str(), delete(image, deletion)));
    let upsertions = request.upsertions.iter().map(|upsertion| (upsertion.name.as_str(), upsert(upsertion)));
    let mut by_user: BTreeMap<&str, Result<MetadataRecord, Refusal>> = BTreeMap::new();
    for (user, mut change) in deletions.chain(upsertions) {
        if (1..METADATA_VERSION_MIN).contains(&level) {
            let message = format!("The current metadata version {level} does not support SCRAM");
            change = Err(Refusal::new(ErrorCode::UnsupportedVersion, message));
        }
        match by_user.get(user) {
            None => by_user.insert(user, change),
            Some(Ok(_)) => {
                let message = "A user credential cannot be altered twice in the same request";
                by_user.insert(user, Err(Refusal::new(ErrorCode::DuplicateResource, message)))
            }
            Some(Err(_)) => continue,
        };
    }
    let mut records = Vec::new();
    let mut response = AlterUserScramCredentialsResponse::default();
    for (user, change) in by_user {
        let (error_code, error_message) = match change {
            Ok(record) => {
                records.push(record);
                (ErrorCode::None.code(), None)
            }
            Err(refusal) => (refusal.code.code(), Some(refusal.message)),
        };
        let user = user.to_owned();
        response.results.push(AlterUserScramCredentialsResult { user, error_code, error_message });
    }
    (records, response)
}

fn delete(image: &Image, deletion: &ScramCredentialDeletion) -> Result<MetadataRecord, Refusal> {
    let ScramCredentialDeletion { name, mechanism } = deletion;
    check_name_and_mechanism(name, *mechanism)?;
    if !image.kept.scram_credentials.contains_key(&(name.clone(), *mechanism)) {
        let message = "Attempt to delete a user credential that does not exist";
        return Err(Refusal::new(ErrorCode::ResourceNotFound, message));
    }
    Ok(RemoveUserScramCredentialRecord { name: name.clone(), mechanism: *mechanism }.into())
}

fn upsert(upsertion: &ScramCredentialUpsertion) -> Result<MetadataRecord, Refusal> {
    let ScramCredentialUpsertion { name, mechanism, iterations, salt, salted_password } = upsertion;
    let unacceptable = |message| Err(Refusal::new(ErrorCode::UnacceptableCredential, message));
    check_name_and_mechanism(name, *mechanism)?;
    if iterations < ITERATIONS.start() {
        return unacceptable("Too few iterations");
    }
    if iterations > ITERATIONS.end() {
        return unacceptable("Too many iterations");
    }
    // Kafka finds no keys for it and answers with UNKNOWN_SERVER_ERROR.
    if salted_password.is_empty() {
        return unacceptable("The salted password must not be empty");
    }
    let keys = if *mechanism == SCRAM_SHA_512 { sha_512(salted_password) } else { sha_256(salted_password) };
    let record = UserScramCredentialRecord {
        name: name.clone(),
        mechanism: *mechanism,
        salt: salt.clone(),
        stored_key: keys.stored.into(),
        server_key: keys.server.into(),
        iterations: *iterations,
    };
    Ok(record.into())
}

fn check_name_and_mechanism(name: &str, mechanism: i8) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::new(ErrorCode::UnacceptableCredential, "Username must not be empty"));
    }
    if ![SCRAM_SHA_256, SCRAM_SHA_512].contains(&mechanism) {
        return Err(Refusal::new(ErrorCode::UnsupportedSaslMechanism, "Unknown SCRAM mechanism"));
    }
    Ok(())
}

/// What a server keeps of a password: the hash of the client's key, and its own.
struct Keys {
    stored: Vec<u8>,
    server: Vec<u8>,
}

fn sha_256(salted_password: &[u8]) -> Keys {
    keys_of::<Hmac<Sha256>, Sha256>(salted_password)
}

fn sha_512(salted_password: &[u8]) -> Keys {
    keys_of::<Hmac<Sha512>, Sha512>(salted_password)
}

/// RFC 5802, chapter 3.
fn keys_of<M: Mac + KeyInit, D: Digest>(salted_password: &[u8]) -> Keys {
    let key = |name: &[u8]| {
        let mac = <M as Mac>::new_from_slice(salted_password).expect("HMAC takes keys of any length");
        mac.chain_update(name).finalize().into_bytes().to_vec()
    };
    Keys { stored: D::digest(key(b"Client Key")).to_vec(), server: key(b"Server Key") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::apply_to;

    fn upsertion(
        name: &str,
        mechanism: i8,
        iterations: i32,
        salted_password: &[u8],
    ) -> ScramCredentialUpsertion {
        ScramCredentialUpsertion {
            name: name.to_owned(),
            mechanism,
            iterations,
            salt: b"salt".to_vec().into(),
            salted_password: salted_password.to_vec().into(),
        }
    }

    fn set(name: &str, mechanism: i8) -> ScramCredentialUpsertion {
        upsertion(name, mechanism, 4096, b"hashed")
    }

    fn remove(name: &str, mechanism: i8) -> ScramCredentialDeletion {
        ScramCredentialDeletion { name: name.to_owned(), mechanism }
    }

    /// Applies what is accepted; returns each user's code and message.
    fn ask(
        image: &mut Image,
        deletions: &[ScramCredentialDeletion],
        upsertions: &[ScramCredentialUpsertion],
    ) -> Vec<(String, i16, String)> {
        let (deletions, upsertions) = (deletions.to_vec(), upsertions.to_vec());
        let request = AlterUserScramCredentialsRequest { deletions, upsertions };
        let (records, response) = alter_user_scram_credentials(image, &request);
        records.iter().for_each(|record| apply_to(image, record));
        let results = response.results.into_iter();
        results.map(|it| (it.user, it.error_code, it.error_message.unwrap_or_default())).collect()
    }

    fn answer(user: &str, code: i16, message: &str) -> (String, i16, String) {
        (user.to_owned(), code, message.to_owned())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// A user whose key is wrong cannot sign in at the Kafka that the directory goes back to. The expected keys were
    /// computed with Python's `hashlib` and `hmac`.
    #[test]
    fn the_keys_are_those_that_the_password_proves() {
        for (mechanism, salted, stored, server) in [
            (
                SCRAM_SHA_256,
                "9891b38cc8cf5591c96a7e5f1da5d95c2486e0c284c51060eb97ec7c1d56d125",
                "376c640b58db0899e08699eac36077b57c7cc936d4f100fd600718a2a7330e12",
                "f1ea20ea55645011e707030036183dd6f5e134a1e46eefb3a8f00347c5898188",
            ),
            (
                SCRAM_SHA_512,
                "2cfe3a1c151662b1ea49d13f595674a1c666add70df15d3d02254e9905993878261da7407fd11c2fee4b0a30df5154b1a752f86a13380ddd4bdd9a7c958ec769",
                "ff41e86c08f2e525a87285eda3d634d669bae8ab6c2e5b3e09ad0014a691fab9eb26557062ff978ee011d9b23e6b87437df366cf7cd4c8747df9277d067fd330",
                "a20870894973d9c760b240b7a95060f1e63512b5f21b81f15ecfe996c163b648d1af4132eaa2e63b3e89b46bb1592beee5f536c2e1005954521cf37278199629",
            ),
        ] {
            let mut image = Image::empty("test");
            let asked = upsertion("user", mechanism, 4096, &bytes(salted));
            assert_eq!(ask(&mut image, &[], &[asked]), [answer("user", 0, "")]);
            let kept = &image.kept.scram_credentials[&("user".to_owned(), mechanism)];
            assert_eq!(
                (hex(&kept.stored_key), hex(&kept.server_key)),
                (stored.to_owned(), server.to_owned())
            );
            assert_eq!((kept.iterations, hex(&kept.salt)), (4096, hex(b"salt")));
        }
    }

    /// As observed on Kafka 4.4.0.
    #[test]
    fn passwords_are_judged_as_kafka_judges_them() {
        let mut image = Image::empty("test");
        for (asked, code, message) in [
            (set("u", 0), 33, "Unknown SCRAM mechanism"),
            (set("u", 3), 33, "Unknown SCRAM mechanism"),
            (set("", 3), 93, "Username must not be empty"),
            (upsertion("u", 1, 4095, b"p"), 93, "Too few iterations"),
            (upsertion("u", 2, 16_385, b"p"), 93, "Too many iterations"),
            (upsertion("u", 2, -1, b""), 93, "Too few iterations"),
            (upsertion("u", 1, 16_384, b""), 93, "The salted password must not be empty"),
        ] {
            let name = asked.name.clone();
            assert_eq!(ask(&mut image, &[], &[asked]), [answer(&name, code, message)]);
        }
        let missing = "Attempt to delete a user credential that does not exist";
        assert_eq!(ask(&mut image, &[remove("u", 1)], &[]), [answer("u", 91, missing)]);
        assert!(image.kept.is_empty());
    }

    /// Two changes of one user would be one of them, and nobody could say which.
    #[test]
    fn a_user_is_changed_once_in_a_request() {
        let mut image = Image::empty("test");
        let twice = "A user credential cannot be altered twice in the same request";
        let missing = "Attempt to delete a user credential that does not exist";
        assert_eq!(ask(&mut image, &[], &[set("t", 1), set("t", 2)]), [answer("t", 92, twice)]);
        assert_eq!(
            ask(&mut image, &[], &[set("w", 9), set("w", 1)]),
            [answer("w", 33, "Unknown SCRAM mechanism")]
        );
        assert_eq!(ask(&mut image, &[], &[set("w", 1), set("w", 9)]), [answer("w", 92, twice)]);
        assert_eq!(ask(&mut image, &[remove("t", 1)], &[set("t", 1)]), [answer("t", 91, missing)]);
        assert!(image.kept.is_empty());
        let both = [answer("nobody", 91, missing), answer("t", 0, "")];
        assert_eq!(ask(&mut image, &[remove("nobody", 1)], &[set("t", 1)]), both);
        assert_eq!(ask(&mut image, &[remove("t", 1)], &[set("t", 1)]), [answer("t", 92, twice)]);
        assert_eq!(ask(&mut image, &[remove("t", 2)], &[]), [answer("t", 91, missing)]);
        assert_eq!(ask(&mut image, &[remove("t", 1)], &[]), [answer("t", 0, "")]);
        assert!(image.kept.is_empty());
    }

    #[test]
    fn an_old_metadata_version_has_no_such_records() {
        let mut image = Image::empty("test");
        image.features.insert(METADATA_VERSION.to_owned(), 10);
        assert_eq!(ask(&mut image, &[], &[set("u", 1)])[0].1, ErrorCode::UnsupportedVersion.code());
        image.features.insert(METADATA_VERSION.to_owned(), 11);
        assert_eq!(ask(&mut image, &[], &[set("u", 1)])[0].1, 0);
    }
}
