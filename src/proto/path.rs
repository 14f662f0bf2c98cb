//! Paths in JSON: a string where they are UTF-8, `{"hex": "..."}` where not. Nothing is lost.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are mostly a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PathBytes(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Hex { hex: String },
}

impl Serialize for PathBytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => s.serialize_str(text),
            Err(_) => {
                let hex = self.0.iter().map(|b| format!("{b:02x}")).collect();
                Form::Hex { hex }.serialize(s)
            }
        }
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Form::deserialize(d)? {
            Form::Text(text) => Ok(PathBytes(text.into_bytes())),
            Form::Hex { hex } => {
                if !hex.is_ascii() || hex.len() % 2 != 0 {
                    return Err(D::Error::custom("hex needs pairs of digits"));
                }
                (0..hex.len() / 2)
                    .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16))
                    .collect::<Result<_, _>>()
                    .map(PathBytes)
                    .map_err(D::Error::custom)
            }
        }
    }
}

impl From<&txfs_journal::RelPath> for PathBytes {
    fn from(path: &txfs_journal::RelPath) -> Self {
        PathBytes(path.as_bytes().to_vec())
    }
}

impl From<&[u8]> for PathBytes {
    fn from(bytes: &[u8]) -> Self {
        PathBytes(bytes.to_vec())
    }
}
