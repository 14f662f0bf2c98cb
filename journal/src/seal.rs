//! The seal: proof that a plan is durable.

use crate::plan::Plan;

/// A plan that is durable and not yet carried out. Only the journal makes one, after it has
/// written the plan; what changes the base asks for it. Give it back with
/// [`Journal::publish`](crate::Journal::publish) or [`Journal::unseal`](crate::Journal::unseal).
#[must_use = "a sealed plan must be applied and published, or taken back"]
#[derive(Debug)]
pub struct Sealed {
    plan: Plan,
}

impl Sealed {
    pub(crate) fn new(plan: Plan) -> Sealed {
        Sealed { plan }
    }

    /// What is to be done.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn into_plan(self) -> Plan {
        self.plan
    }
}
