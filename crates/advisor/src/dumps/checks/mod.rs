//! Checks that compute: they compare values of several places, add up, and know precedence.
//! What a single value decides is a row of the catalogue instead.

mod aix;
mod aix_fc;
mod article;
mod article_tests;
mod linux;
mod numa;
mod scale;
mod scale_dump;
mod switch;

use super::view::{Report, View};

/// Every check.
pub(super) const CHECKS: [fn(&View<'_>, &mut Report); 9] = [
    aix::check,
    aix_fc::check,
    switch::check,
    linux::check,
    numa::check,
    scale::check,
    scale_dump::check,
    article::check,
    article_tests::check,
];
