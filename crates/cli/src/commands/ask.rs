//! Asking every process of a cluster about itself, and reading what it answers.

use std::time::Duration;

use anyhow::Result;
use base::units::human_size;
use serde::Serialize;
use serde_json::Value;
use wire::admin::{AdminReply, AdminRequest};

use crate::{
    args::Listing,
    link::{self, Link},
};

/// One process and what it answered.
#[derive(Serialize)]
pub struct Answer {
    /// Its name.
    pub process: String,
    /// Where it was asked.
    pub address: String,
    /// Absent: it does not answer.
    pub answer: Option<Value>,
}

/// Asks every process of the cluster.
pub fn ask_all(listing: &Listing, request: &AdminRequest) -> Result<Vec<Answer>> {
    let dir = listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        let mut targets = vec![("manager".to_owned(), dir.file.manager.to_string())];
        targets.extend(dir.file.nodes.iter().map(|n| (n.name.clone(), n.addr.to_string())));
        targets.extend(report.clients.iter().map(|c| (c.mount.clone(), c.admin_addr.clone())));
        let mut answers = Vec::new();
        for (process, address) in targets {
            let reply = match address.parse() {
                Ok(addr) => link.admin(addr, request, Duration::from_secs(2)).await.ok(),
                Err(_) => None,
            };
            let answer = reply.and_then(|r| match r {
                AdminReply::Json(text) => serde_json::from_str(&text).ok(),
                AdminReply::Done => None,
            });
            answers.push(Answer { process, address, answer });
        }
        Ok(answers)
    })
}

/// The elements of an array; of anything else none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text as it is, anything else as JSON.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number of bytes for people.
pub fn size(value: &Value) -> String {
    human_size(value.as_u64().unwrap_or(0))
}
