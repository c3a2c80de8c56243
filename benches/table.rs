//! Numbers of several rounds, and the tables that show them.

/// One measure over all rounds, in their order.
#[derive(Clone, Default, Debug)]
pub struct Series(Vec<f64>);

impl Series {
    /// Adds the number of one round.
    pub fn push(&mut self, value: f64) {
        assert!(value.is_finite(), "a measure is a number");
        self.0.push(value);
    }

    /// The middle value; of an even number of rounds the mean of the two in the middle. NaN without a round.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        match (count, count % 2) {
            (0, _) => f64::NAN,
            (_, 1) => sorted[count / 2],
            _ => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
        }
    }

    /// The least value. NaN without a round.
    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The greatest value. NaN without a round.
    pub fn greatest(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// Round by round, how much of the other one this is. On a machine that others use too, it says more than the
    /// medians of both.
    pub fn ratios_to(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }
}

/// A number with as many digits as say something.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "–".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A Markdown table whose first column is text and whose others are numbers.
pub fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut lines = vec![line(head.iter().copied())];
    lines.push(line((0..head.len()).map(|column| if column == 0 { "---" } else { "---:" })));
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str))));
    lines.join("\n")
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        let of = |values: &[f64]| {
            let mut series = Series::default();
            values.iter().for_each(|value| series.push(*value));
            (series.least(), series.median(), series.greatest())
        };
        assert_eq!(of(&[9.0, 1.0, 5.0]), (1.0, 5.0, 9.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 8.0]), (1.0, 3.0, 8.0));
        assert!(Series::default().median().is_nan());
    }

    /// The second round was disturbed for both: the ratio of medians would be 1.5.
    #[test]
    fn a_ratio_is_taken_of_one_round() {
        let (ours, theirs) = (Series(vec![9.0, 1.0, 6.0]), Series(vec![3.0, 0.5, 4.0]));
        assert_eq!(ours.ratios_to(&theirs).0, [3.0, 2.0, 1.5]);
    }

    #[test]
    fn a_table_has_one_line_a_row() {
        let rows = [vec!["a".to_owned(), number(0.1234)], vec!["b".to_owned(), number(1234.5)]];
        let expected = "| x | y |\n| --- | ---: |\n| a | 0.123 |\n| b | 1234 |";
        assert_eq!(markdown(&["x", "y"], &rows), expected);
    }
}
