//! The view of a message for a request log: one line of JSON.

use std::fmt::Write;

use bytes::Bytes;
use klamm_model::Uuid;

use crate::{Fields, RecordsField};

/// A line of JSON that is being written.
#[derive(Debug, Default)]
pub struct JsonView {
    text: String,
}

/// What is shown of a value that may be a secret.
pub(crate) struct Hidden;

/// What can be shown.
pub(crate) trait Show {
    fn show(&self, json: &mut JsonView, version: i16);
}

impl JsonView {
    pub(crate) fn of<T: Fields>(fields: &T, version: i16) -> String {
        let mut json = JsonView::default();
        fields.show(&mut json, version);
        json.text
    }

    pub(crate) fn field(&mut self, name: &str, value: &dyn Show, version: i16) {
        if !self.text.ends_with('{') {
            self.text.push(',');
        }
        self.string(name);
        self.text.push(':');
        value.show(self, version);
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                // Line separators too: a log line must stay one line for every reader of it.
                c if c.is_control() || c == '\u{2028}' || c == '\u{2029}' => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(c));
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

impl<T: Fields> Show for T {
    fn show(&self, json: &mut JsonView, version: i16) {
        json.text.push('{');
        self.view(json, version);
        json.text.push('}');
    }
}

impl<T: Show> Show for Vec<T> {
    fn show(&self, json: &mut JsonView, version: i16) {
        json.text.push('[');
        for (index, element) in self.iter().enumerate() {
            if index > 0 {
                json.text.push(',');
            }
            element.show(json, version);
        }
        json.text.push(']');
    }
}

impl<T: Show> Show for Option<T> {
    fn show(&self, json: &mut JsonView, version: i16) {
        match self {
            Some(value) => value.show(json, version),
            None => json.text.push_str("null"),
        }
    }
}

impl Show for String {
    fn show(&self, json: &mut JsonView, _version: i16) {
        json.string(self);
    }
}

impl Show for Uuid {
    fn show(&self, json: &mut JsonView, _version: i16) {
        let _ = write!(json.text, "\"{self}\"");
    }
}

fn show_size(json: &mut JsonView, bytes: usize) {
    let _ = write!(json.text, "{{\"bytes\":{bytes}}}");
}

impl Show for Bytes {
    fn show(&self, json: &mut JsonView, _version: i16) {
        show_size(json, self.len());
    }
}

impl Show for RecordsField {
    fn show(&self, json: &mut JsonView, _version: i16) {
        show_size(json, self.len());
    }
}

impl Show for Hidden {
    fn show(&self, json: &mut JsonView, _version: i16) {
        json.text.push_str("\"[hidden]\"");
    }
}

impl Show for f64 {
    fn show(&self, json: &mut JsonView, _version: i16) {
        if self.is_finite() {
            let _ = write!(json.text, "{self:?}");
        } else {
            // JSON knows no infinity and no NaN.
            let _ = write!(json.text, "\"{self}\"");
        }
    }
}

macro_rules! plain {
    ($($kind:ty)*) => {$(
        impl Show for $kind {
            fn show(&self, json: &mut JsonView, _version: i16) {
                let _ = write!(json.text, "{self}");
            }
        }
    )*};
}

plain!(bool i8 i16 u16 i32 i64);

#[cfg(test)]
mod tests {
    use crate::Message;
    use crate::messages::incremental_alter_configs::{AlterConfigsResource, AlterableConfig};
    use crate::messages::{FetchRequest, IncrementalAlterConfigsRequest, SaslAuthenticateRequest};

    /// A log line that shows a password or a token is a leak; one that a topic's name can break is a forgery.
    #[test]
    fn secrets_are_hidden_and_a_line_stays_one_line() {
        let token = SaslAuthenticateRequest { auth_bytes: "\0alice\0secret".into() };
        assert_eq!(token.to_json(2), r#"{"authBytes":{"bytes":13}}"#);

        let password = AlterableConfig {
            name: "ssl.key.password".to_owned(),
            value: Some("secret".to_owned()),
            ..Default::default()
        };
        let resource = AlterConfigsResource {
            resource_name: "a\n\"b\"\u{2028}".to_owned(),
            configs: vec![password],
            ..Default::default()
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        let json = request.to_json(1);
        assert!(!json.contains("secret") && json.contains(r#""value":"[hidden]""#), "{json}");
        assert!(json.contains(r#""resourceName":"a\n\"b\"\u2028""#), "{json}");
    }

    #[test]
    fn the_view_has_the_fields_of_its_version() {
        let request = FetchRequest { max_wait_ms: 500, ..Default::default() };
        assert_eq!(request.to_json(0), r#"{"replicaId":-1,"maxWaitMs":500,"minBytes":0,"topics":[]}"#);
        let newest = request.to_json(18);
        assert!(
            newest.contains("sessionEpoch") && !newest.contains("replicaId") && !newest.contains("clusterId"),
            "{newest}"
        );
    }
}
