//! How much of a body of commands the tiers cover.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Tier, Verdict, classify, reads};

/// Counts of texts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// All.
    pub texts: u64,
    /// Witnessed in tier bare.
    pub bare: u64,
    /// Witnessed in tier exact, those of tier bare among them.
    pub exact: u64,
    /// Not witnessed, but known to read only.
    pub reads_only: u64,
    /// Neither.
    pub emissions: u64,
    /// Witnessed texts by their first tool.
    pub tools: BTreeMap<&'static str, u64>,
    /// Why texts are not witnessed in tier exact.
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Stats {
    /// Counts a text.
    pub fn add(&mut self, text: &[u8]) {
        self.texts += 1;
        match classify(text, Tier::Exact) {
            Verdict::Witnessed(witness) => {
                self.exact += 1;
                self.bare += u64::from(witness.tier == Tier::Bare);
                if let Some(command) = witness.commands.first() {
                    *self.tools.entry(command.tool()).or_default() += 1;
                }
            }
            Verdict::Emission(emission) => {
                *self.reasons.entry(emission.reason.code()).or_default() += 1;
                if reads::reads_only(text) {
                    self.reads_only += 1;
                } else {
                    self.emissions += 1;
                }
            }
        }
    }

    /// The table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut line = |what: &str, count: u64, note: &str| {
            let share =
                if self.texts == 0 { 0.0 } else { 100.0 * count as f64 / self.texts as f64 };
            let text = format!("{what:<22}{count:>9}{share:>8.2} %  {note}");
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line("texts", self.texts, "");
        line("witnessed, bare", self.bare, "approvals avoided with --tier bare");
        line("witnessed, exact", self.exact, "approvals avoided with --tier exact");
        line("reads only", self.reads_only, "advice, no proof");
        line("other emissions", self.emissions, "");
        for (title, counts) in [("witnessed", &self.tools), ("emission", &self.reasons)] {
            let mut counts: Vec<_> = counts.iter().collect();
            counts.sort_by(|a, b| b.1.cmp(a.1));
            for (word, count) in counts {
                line(&format!("  {title} {word}"), *count, "");
            }
        }
        out
    }
}
