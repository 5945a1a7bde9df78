//! What was measured: rows of repeated values, as a table for people and as JSON.
//!
//! A goal is information: no row makes the command fail, machines differ.

use std::fmt::Write as _;

/// A row: repeated measurements of one thing, against what it should be.
struct Row {
    what: String,
    unit: &'static str,
    values: Vec<f64>,
    /// The median should be at most this.
    goal: Option<f64>,
}

/// Sections of rows, both in the order of their first value.
#[derive(Default)]
pub(super) struct Table {
    sections: Vec<(&'static str, Vec<Row>)>,
}

impl Table {
    /// Adds a value to the row of this name.
    pub(super) fn add(
        &mut self,
        section: &'static str,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        goal: Option<f64>,
    ) {
        let what = what.into();
        let index = self.sections.iter().position(|(name, _)| *name == section);
        let index = index.unwrap_or_else(|| {
            self.sections.push((section, Vec::new()));
            self.sections.len() - 1
        });
        let rows = &mut self.sections[index].1;
        match rows.iter_mut().find(|row| row.what == what) {
            Some(row) => row.values.push(value),
            None => rows.push(Row {
                what,
                unit,
                values: vec![value],
                goal,
            }),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{:<52} {:>10} {:<7} {:>21}  {:>8}\n",
            "", "median", "", "least .. most", "at most"
        );
        for (name, rows) in &self.sections {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name}");
            for row in rows {
                let _ = writeln!(text, "{}", row.text());
            }
        }
        text
    }

    /// For programs: an object with one list.
    pub(super) fn json(&self) -> String {
        let mut objects = Vec::new();
        for (section, rows) in &self.sections {
            for row in rows {
                objects.push(row.json(section));
            }
        }
        format!("{{\"rows\": [\n  {}\n]}}\n", objects.join(",\n  "))
    }
}

impl Row {
    /// The middle value, and the extremes; `None` without values.
    fn spread(&self) -> Option<(f64, f64, f64)> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let half = sorted.len() / 2;
        let median = f64::midpoint(sorted[half], sorted[(sorted.len() - 1) / 2]);
        Some((median, least, most))
    }

    fn text(&self) -> String {
        let Some((median, least, most)) = self.spread() else {
            return format!("  {:<50} not measured", self.what);
        };
        let range = if self.values.len() > 1 {
            format!("{} .. {}", shown(least), shown(most))
        } else {
            String::new()
        };
        let verdict = match self.goal {
            Some(goal) if median <= goal => format!("{goal:>8}  met"),
            Some(goal) => format!("{goal:>8}  missed"),
            None => String::new(),
        };
        let line = format!(
            "  {:<50} {:>10} {:<7} {range:>21}  {verdict}",
            self.what,
            shown(median),
            self.unit
        );
        line.trim_end().to_owned()
    }

    fn json(&self, section: &str) -> String {
        let (median, least, most) = self.spread().unwrap_or_default();
        let values: Vec<String> = self.values.iter().map(f64::to_string).collect();
        let mut object = format!(
            "{{\"section\": {section:?}, \"what\": {:?}, \"unit\": {:?}, \"median\": {median}, \
             \"least\": {least}, \"most\": {most}, \"values\": [{}]",
            self.what,
            self.unit,
            values.join(", ")
        );
        if let Some(goal) = self.goal {
            let met = median <= goal;
            let _ = write!(object, ", \"at_most\": {goal}, \"met\": {met}");
        }
        object.push('}');
        object
    }
}

/// Four digits, or all of a large number's.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The number under this key in one line of JSON.
pub(super) fn number(json: &str, key: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    rest[..end].trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        for value in [1.05, 0.99, 1.01] {
            table.add("target", "slowdown", value, "x", Some(1.02));
        }
        table.add("map", "look-ups", 5e6, "/s", Some(4e6));
        table
    }

    #[test]
    fn a_row_shows_the_median_between_its_extremes() {
        let text = table().text();
        let row = text.lines().find(|line| line.contains("slowdown")).unwrap();
        let words: Vec<_> = row.split_whitespace().collect();
        let expected = "slowdown 1.010 x 0.990 .. 1.050 1.02 met";
        assert_eq!(words.join(" "), expected);
        assert!(text.contains("5000000 /s"), "{text}");
        assert!(text.contains("4000000  missed"), "{text}");
    }

    #[test]
    fn json_holds_every_value_and_goal() {
        let json = table().json();
        let line = json.lines().find(|line| line.contains("slowdown")).unwrap();
        assert_eq!(number(line, "median"), Some(1.01));
        assert_eq!(number(line, "at_most"), Some(1.02));
        assert!(line.contains("\"values\": [1.05, 0.99, 1.01]"), "{line}");
        assert!(line.contains("\"met\": true"), "{line}");
    }
}
