//! What charts hold, as one table: a line for each row and step.

use std::{fmt::Write as _, rc::Rc};

use super::super::{ask::Found, show};

/// The figures of a column, one a line.
pub enum Column {
    /// Times, seconds since 1970.
    Time(Vec<u64>),
    /// Names; none where a chart is not broken down by it.
    Text(Vec<Option<Rc<str>>>),
    /// Figures; none where nothing was recorded.
    Figure(Vec<Option<f64>>),
}

/// Columns of one length, with their names.
pub struct Table(pub Vec<(String, Column)>);

impl Table {
    /// Of one chart: the end of the step, the breakdowns, the figure by its unit. Of several also which chart it is, all
    /// breakdowns that any has, and the unit.
    pub fn of(charts: &[Found], several: bool) -> Table {
        let mut dimensions: Vec<&str> = Vec::new();
        for breakdown in charts.iter().flat_map(|found| &found.query.breakdowns) {
            if !dimensions.contains(breakdown) {
                dimensions.push(breakdown);
            }
        }
        let (mut queries, mut ends, mut units, mut figures) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut names: Vec<Vec<Option<Rc<str>>>> = vec![Vec::new(); dimensions.len()];
        for found in charts {
            let begun = found.now - found.span.from_ago;
            let query: Option<Rc<str>> = Some(found.query.to_string().into());
            let unit: Option<Rc<str>> = Some(found.query.statistic.unit.into());
            for (values, row) in &found.rows {
                let steps = show::steps(found, values, row);
                let lines = steps.len();
                for (dimension, column) in dimensions.iter().zip(&mut names) {
                    let at = found.query.breakdowns.iter().position(|breakdown| breakdown == dimension);
                    let value: Option<Rc<str>> = at.map(|at| values[at].as_str().into());
                    column.resize(column.len() + lines, value);
                }
                queries.resize(queries.len() + lines, query.clone());
                units.resize(units.len() + lines, unit.clone());
                ends.extend((1..=lines as u64).map(|step| begun + step * found.span.step));
                figures.extend(steps);
            }
        }
        let mut columns = vec![("end".to_owned(), Column::Time(ends))];
        let named =
            dimensions.iter().zip(names).map(|(name, column)| ((*name).to_owned(), Column::Text(column)));
        columns.extend(named);
        if several {
            columns.insert(0, ("query".to_owned(), Column::Text(queries)));
            columns.push(("unit".to_owned(), Column::Text(units)));
        }
        let figure = if several {
            "value"
        } else {
            charts.first().map_or("value", |found| found.query.statistic.unit)
        };
        columns.push((figure.to_owned(), Column::Figure(figures)));
        Table(columns)
    }

    /// Lines.
    pub fn len(&self) -> usize {
        match self.0.first() {
            Some((_, Column::Time(times))) => times.len(),
            Some((_, Column::Text(texts))) => texts.len(),
            Some((_, Column::Figure(figures))) => figures.len(),
            None => 0,
        }
    }

    /// As comma-separated values; what is not there is empty.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for (at, (name, column)) in self.0.iter().enumerate() {
            let end = if matches!(column, Column::Time(_)) { "_s" } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{}{}", comma(at), quoted(&format!("{name}{end}")));
        }
        text.push('\n');
        for line in 0..self.len() {
            for (at, (_, column)) in self.0.iter().enumerate() {
                text.push_str(comma(at));
                match column {
                    Column::Time(times) => drop(write!(text, "{}", times[line])),
                    Column::Text(texts) => text.push_str(&quoted(texts[line].as_deref().unwrap_or_default())),
                    Column::Figure(figures) => {
                        if let Some(figure) = figures[line] {
                            let _ = write!(text, "{figure}");
                        }
                    }
                }
            }
            text.push('\n');
        }
        text
    }
}

fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}

/// A field, in quotes where it must be (RFC 4180).
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::found, *};

    #[test]
    fn a_line_for_each_step_and_an_empty_figure_for_a_gap() {
        let name = "\"/a,\"\"b\"\"\"";
        let table = Table::of(&[found()], false);
        let expected =
            format!("end_s,file,op,operations\n1010,{name},read,7\n1020,{name},read,0\n1030,{name},read,\n");
        assert_eq!((table.csv(), table.len()), (expected, 3));
        let table = Table::of(&[found()], true);
        assert!(table.csv().starts_with(&format!(
            "query,end_s,file,op,unit,value\nfile.ops[file][op],1010,{name},read,operations,7\n"
        )));
    }
}
