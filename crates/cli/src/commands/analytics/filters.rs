//! Filters as people write them: names become the numbers under which they were recorded. A name that neither the cluster nor
//! this program knows, and that nobody has seen in the time asked about, is a mistake, and no empty answer.

use std::ops::Range;

use analytics::{Answer, Comparison, Filter, Query, Value, Want};
use anyhow::{Result, anyhow, bail};
use base::{
    stats::{Measure, Names as Called, STATISTICS, Set, Source, Statistic},
    when::date_time,
};

use super::{
    ask::{Span, Watch},
    members,
    names::{UNKNOWN, possible},
    printable::is_meant,
};
use crate::output;

/// What no file is recorded as.
const NO_FILE: &str = "0:18446744073709551615";
/// Values that an error names.
const NAMED_MAX: usize = 12;

/// A value that only those who are asked can know.
pub struct Doubt {
    /// The filter that names it.
    filter: usize,
    /// What became of it there.
    places: Range<usize>,
    /// By what it filters, as it was written.
    dimension: &'static str,
    /// As it was written.
    text: String,
}

impl Watch {
    /// Puts numbers in the place of names. Returned is what may be a mistake.
    pub(super) async fn number(&mut self, query: &mut Query, now: u64, span: Span) -> Result<Vec<Doubt>> {
        let mut doubts = Vec::new();
        for filter in 0..query.filters.len() {
            if self.of_no_pdisk_in_the_map(&mut query.filters[filter]) {
                continue;
            }
            let dimension = query.filters[filter].dimension;
            let mut numbered: Vec<Want> = Vec::new();
            for want in query.filters[filter].wanted.clone() {
                if want.text == "(others)" {
                    bail!(
                        "[{dimension}={}]: of what was not kept apart nobody knows the {dimension}",
                        want.text
                    );
                }
                let (found, is_known) = self.numbers_of(query, dimension, &want.text, (now, span)).await?;
                let (begin, bucket) = (numbered.len(), want.bucket);
                numbered.extend(found.into_iter().map(|text| Want { text, bucket }));
                if !is_known {
                    let places = begin..numbered.len();
                    doubts.push(Doubt { filter, places, dimension, text: want.text });
                }
            }
            query.filters[filter].wanted = numbered;
            if let Some(from) = query.statistic.derived_from(dimension) {
                query.filters[filter].dimension = from;
            }
        }
        Ok(doubts)
    }

    /// As what a value was recorded, and whether it is known that there is such a one.
    async fn numbers_of(
        &mut self,
        query: &Query,
        dimension: &'static str,
        text: &str,
        (now, span): (u64, Span),
    ) -> Result<(Vec<String>, bool)> {
        let of_mounts = matches!(query.statistic.source, Source::Operations(Set::File, _));
        let as_it_is = || vec![text.to_owned()];
        Ok(match dimension {
            "client" if !of_mounts => self.names.sessions_of(text)?,
            "client" => match self.member(dimension, text, of_mounts) {
                Ok(client) => (vec![client], true),
                // A machine's name means its clients; no mount is called so, as those are paths. Where servers are clients as well,
                // which machines may lend their names, it would mean two things.
                Err(error) => (self.names.clients_on("host", text).map_err(|_| error)?, true),
            },
            "process" => (vec![self.member(dimension, text, of_mounts)?], true),
            "peer" => self.names.peer_of(text),
            "file" => (self.files_of(query, text, now, span).await?, true),
            "directory" => (self.files_used(query, dimension, text, now, span).await?, true),
            "pool" | "node" => (self.names.pdisks_of(dimension, text)?, true),
            "host" | "mount" if query.statistic.derived_from(dimension).is_some() => {
                let clients = self.names.clients_on(dimension, text)?;
                let numbers = |name: &String| self.names.sessions_of(name).map(|(sessions, _)| sessions);
                let sessions = || -> Result<Vec<String>> {
                    Ok(clients.iter().map(numbers).collect::<Result<Vec<_>>>()?.concat())
                };
                (if of_mounts { clients } else { sessions()? }, true)
            }
            "pdisk" => (as_it_is(), self.names.has_pdisk(text)),
            "fs" => self.names.fs_of(text)?,
            // As it is shown.
            "user" => (vec![user_of(text)?], false),
            "op" | "class" => (as_it_is(), is_called(query.statistic, dimension, text)),
            ordered if analytics::is_ordered(ordered) => (as_it_is(), true),
            _ => (as_it_is(), false),
        })
    }

    /// Pdisks that the map does not know lie in no pool and no node that is known: their history is found by that.
    fn of_no_pdisk_in_the_map(&self, filter: &mut Filter) -> bool {
        let alone = matches!(&filter.wanted[..], [want] if want.text == UNKNOWN);
        if !alone || !matches!(filter.dimension, "pool" | "node") {
            return false;
        }
        filter.comparison = match filter.comparison {
            Comparison::Is => Comparison::IsNot,
            _ => Comparison::Is,
        };
        filter.wanted = self.names.pdisks_with(filter.dimension);
        filter.dimension = "pdisk";
        true
    }

    /// Fails if nobody who was asked knows a value that was in doubt.
    pub(super) fn all_known(&self, doubts: &[Doubt], answer: &Answer, now: u64, span: Span) -> Result<()> {
        for Doubt { filter, places, dimension, text } in doubts {
            // Programs before this one do not tell.
            let Some(known) = answer.known.get(*filter) else { continue };
            if places.clone().any(|place| known.wanted.contains(&place)) {
                continue;
            }
            let at = |ago: u64| date_time(now.saturating_sub(ago));
            let apart = match answer.coverage() {
                share if share < 1.0 => format!(" among the {:.1} % that were told apart", share * 100.0),
                _ => String::new(),
            };
            let (from, to) = (at(span.from_ago), at(span.to_ago));
            let seen = self.nearest(dimension, text, known.values.iter());
            bail!(
                "there is no {dimension} {text:?}, nor was one seen between {from} and {to}{apart}; {seen}"
            );
        }
        Ok(())
    }

    /// What could have been meant: first what begins alike.
    fn nearest<'a>(&self, dimension: &str, text: &str, values: impl Iterator<Item = &'a Value>) -> String {
        let alike = |shown: &String| {
            text.chars().zip(shown.chars()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
        };
        let mut shown: Vec<String> = values.map(|value| self.names.show(dimension, value)).collect();
        shown.sort_by(|a, b| alike(b).cmp(&alike(a)).then_with(|| a.cmp(b)));
        shown.dedup();
        let more = shown.len().saturating_sub(NAMED_MAX);
        shown.truncate(NAMED_MAX);
        match (shown.is_empty(), more) {
            (true, _) => "no other was seen either".to_owned(),
            (false, 0) => format!("there are: {}", output::visible(&shown.join(", "))),
            (false, more) => format!("there are: {} and {more} more", output::visible(&shown.join(", "))),
        }
    }

    fn member(&self, dimension: &str, name: &str, of_mounts: bool) -> Result<String> {
        let able = members::called(&self.members, of_mounts.then_some("client"));
        let meant: Vec<&String> = able.iter().filter(|able| is_meant(able, name)).collect();
        match meant[..] {
            [one] => Ok(one.clone()),
            _ => Err(anyhow!(
                "there is no {dimension} {name:?}; {}",
                possible(able.iter().map(|able| able.as_str()))
            )),
        }
    }

    /// The files of a path: of those that were used in the time asked about.
    async fn files_of(&mut self, query: &Query, path: &str, now: u64, span: Span) -> Result<Vec<String>> {
        let number = |text: &str| text.parse::<u64>().is_ok();
        // As files without a name are shown.
        let bare = path.strip_prefix("removed (").and_then(|rest| rest.strip_suffix(')')).unwrap_or(path);
        if bare.split_once(':').is_some_and(|(fs, inode)| number(fs) && number(inode)) {
            return Ok(vec![bare.to_owned()]);
        }
        self.files_used(query, "file", path, now, span).await
    }

    /// The files of that path, or in that directory, that were used in the time asked about.
    async fn files_used(
        &mut self,
        query: &Query,
        dimension: &str,
        path: &str,
        now: u64,
        span: Span,
    ) -> Result<Vec<String>> {
        // A file that was used is one, even if no byte of it was.
        let of_operations = |set| Source::Operations(set, Measure::Operations);
        let statistic = match query.statistic.source {
            Source::Operations(set, _) => STATISTICS.iter().find(|s| s.source == of_operations(set)),
            Source::Family => None,
        };
        let statistic = statistic.unwrap_or(query.statistic);
        let all = Query { statistic, filters: Vec::new(), breakdowns: vec!["file"] };
        let (answer, ..) = self.put(&all, now, Span { step: 0, ..span }, 1).await?;
        self.names.learn(self.link.as_ref(), answer.rows.iter().flat_map(|(key, _)| key)).await;
        let found = answer.rows.iter().filter_map(|(key, _)| match key.first() {
            Some(value @ Value::File(fs, inode)) if is_meant(&self.names.show(dimension, value), path) => {
                Some(format!("{fs}:{inode}"))
            }
            _ => None,
        });
        let found: Vec<String> = found.collect();
        if found.is_empty() && span.idle {
            return Ok(vec![NO_FILE.to_owned()]);
        }
        if found.is_empty() {
            let mut known: Vec<String> = Vec::new();
            for shown in answer.rows.iter().map(|(key, _)| self.names.show(dimension, &key[0])) {
                if known.len() < 8 && !known.contains(&shown) {
                    known.push(shown);
                }
            }
            let (known, apart) = (output::visible(&known.join(", ")), answer.coverage());
            if apart < 1.0 {
                bail!(
                    "no {dimension} {path:?} was told apart in that time, as {:.1} % of the operations were; if it was used it is \
                     in (others): ask for less time. The first of those that were: {known}",
                    apart * 100.0
                );
            }
            bail!("no {dimension} {path:?} was used in that time; the first of those that were: {known}");
        }
        Ok(found)
    }
}

/// The number of a user, as it is shown or by itself.
fn user_of(text: &str) -> Result<String> {
    let number = text.strip_prefix("uid ").unwrap_or(text);
    match number.parse::<u32>() {
        Ok(number) => Ok(number.to_string()),
        Err(_) => bail!(
            "users are recorded by their numbers: write [user=1000], not {text:?}; `id -u NAME` tells it"
        ),
    }
}

/// Whether operations of a statistic, or their classes, are called that.
fn is_called(statistic: &Statistic, dimension: &str, text: &str) -> bool {
    let Called { op, class } = match statistic.source {
        Source::Family if statistic.name == "file.errors" => fuse::NAMES,
        Source::Operations(Set::File, _) => fuse::NAMES,
        Source::Operations(Set::Strip, _) => nsd::NAMES,
        Source::Operations(Set::Manager, _) => manager::NAMES,
        Source::Family => return false,
    };
    (0..=u8::MAX).any(|number| text == if dimension == "op" { op(number) } else { class(number) })
}
