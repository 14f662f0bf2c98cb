//! A host's settings, edited so that what is not ours stays as it is written.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Host;

/// An object whose fields keep their order and their text.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields: Vec<(String, _)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    // Hosts take the last of two; a person who edits may mean the first.
                    if fields.iter().any(|(n, _)| *n == name) {
                        return Err(serde::de::Error::custom(format!("{name:?} is there twice")));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

impl Fields {
    fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| &**value)
    }

    /// Replaces, adds or removes a field.
    fn set(&mut self, name: &str, value: Option<String>) -> serde_json::Result<()> {
        let at = self.0.iter().position(|(n, _)| n == name);
        match (at, value.map(RawValue::from_string).transpose()?) {
            (Some(at), Some(value)) => self.0[at].1 = value,
            (None, Some(value)) => self.0.push((name.to_owned(), value)),
            (Some(at), None) => drop(self.0.remove(at)),
            (None, None) => {}
        }
        Ok(())
    }

    fn text(&self, depth: usize) -> serde_json::Result<String> {
        let fields = self.0.iter().map(|(name, value)| {
            serde_json::to_string(name).map(|name| format!("{name}: {}", value.get()))
        });
        Ok(list('{', '}', fields.collect::<Result<Vec<_>, _>>()?, depth))
    }
}

fn list(open: char, close: char, items: Vec<String>, depth: usize) -> String {
    if items.is_empty() {
        return format!("{open}{close}");
    }
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    let items: Vec<_> = items.into_iter().map(|item| format!("{inner}{item}")).collect();
    format!("{open}\n{}\n{outer}{close}", items.join(",\n"))
}

/// Whether a group of hooks is the one that was put there by us.
fn is_own(host: Host, group: &RawValue) -> bool {
    let Ok(group) = serde_json::from_str::<Value>(group.get()) else { return false };
    let calls = format!(" hook {}", host.name());
    let own = |hook: &Value| {
        hook["command"].as_str().is_some_and(|command| {
            let blocks = ["|| exit 2", "exit 2; }"].iter().any(|end| command.ends_with(end));
            command.contains("txfs") && command.contains(&calls) && blocks
        })
    };
    group["hooks"].as_array().is_some_and(|hooks| !hooks.is_empty() && hooks.iter().all(own))
}

/// Our group of hooks, as text at its place in the file.
fn group(host: Host, command: &str) -> serde_json::Result<String> {
    let group = serde_json::json!({
        "matcher": host.tool(),
        "hooks": [{ "type": "command", "command": command }],
    });
    let text = serde_json::to_string_pretty(&group)?;
    Ok(text.replace('\n', "\n      "))
}

/// The settings with our hooks that call `command`, or without ours.
///
/// # Errors
/// If the settings are no JSON, or are of another shape.
pub fn edited(host: Host, settings: &str, command: Option<&str>) -> serde_json::Result<String> {
    let blank = settings.trim().is_empty();
    let mut top: Fields = serde_json::from_str(if blank { "{}" } else { settings })?;
    let mut hooks: Fields = match top.get("hooks") {
        Some(hooks) => serde_json::from_str(hooks.get())?,
        None => Fields(Vec::new()),
    };
    let before = top.get("hooks").is_some();
    for event in host.events() {
        let groups: Vec<Box<RawValue>> = match hooks.get(event) {
            Some(groups) => serde_json::from_str(groups.get())?,
            None => Vec::new(),
        };
        let new = command.map(|command| group(host, command)).transpose()?;
        let own: Vec<_> = groups.iter().filter(|g| is_own(host, g)).collect();
        let same = match (&own[..], &new) {
            ([], None) => true,
            ([one], Some(new)) => {
                let parse = serde_json::from_str::<Value>;
                parse(one.get())? == parse(new)?
            }
            ([], Some(_)) | ([..], _) => false,
        };
        if same {
            continue;
        }
        let others = groups.iter().filter(|g| !is_own(host, g)).map(|g| g.get().to_owned());
        let items: Vec<_> = others.chain(new).collect();
        let text = (!items.is_empty()).then(|| list('[', ']', items, 2));
        hooks.set(event, text)?;
    }
    let text = if hooks.0.is_empty() { None } else { Some(hooks.text(1)?) };
    if text.is_some() || before {
        top.set("hooks", text)?;
    }
    Ok(top.text(0)? + "\n")
}
