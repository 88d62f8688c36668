//! A table that can become Markdown or HTML.

use std::fmt::Write;

/// A table of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// One line; for a published report's table also in its own language.
    pub caption: String,
    /// One entry for each cell of a row.
    pub head: Vec<Head>,
    pub rows: Vec<Vec<String>>,
    /// Notes that are needed to read it.
    pub notes: Vec<String>,
}

/// The head of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub title: String,
    /// Figures are aligned to the right.
    pub is_figure: bool,
}

impl Table {
    /// The first of `titles` is for names, the others for figures.
    pub(crate) fn new(caption: impl Into<String>, titles: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let head = titles.into_iter().enumerate();
        let head = head.map(|(place, title)| Head { title: title.into(), is_figure: place > 0 }).collect();
        Self { caption: caption.into(), head, ..Self::default() }
    }

    /// The same with words in the columns from `first` on.
    pub(crate) fn words_from(mut self, first: usize) -> Self {
        self.head.iter_mut().skip(first).for_each(|head| head.is_figure = false);
        self
    }

    /// Adds a row. Missing cells are empty, and excess cells are dropped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.head.len(), String::new());
        self.rows.push(row);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Markdown as GitHub reads it, with padded columns, so that the source is also readable.
    pub(crate) fn markdown(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|head| escaped(&head.title)).collect();
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
        let widths: Vec<usize> = (0..head.len())
            .map(|column| {
                let cells = rows.iter().filter_map(|row| row.get(column)).chain(head.get(column));
                cells.map(|cell| width(cell)).max().unwrap_or(0).max(3)
            })
            .collect();
        let mut text = String::new();
        if !self.caption.is_empty() {
            let _ = writeln!(text, "**{}**\n", escaped(&self.caption));
        }
        self.line(&mut text, &head, &widths);
        for (head, &width) in self.head.iter().zip(&widths) {
            // A colon at the right end aligns the column to the right.
            let _ = match head.is_figure {
                true => write!(text, "|{}:", "-".repeat(width + 1)),
                false => write!(text, "|{}", "-".repeat(width + 2)),
            };
        }
        text.push_str("|\n");
        for row in &rows {
            self.line(&mut text, row, &widths);
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{}", escaped(note));
        }
        text
    }

    fn line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        for ((cell, head), &wanted) in cells.iter().zip(&self.head).zip(widths) {
            let padding = " ".repeat(wanted.saturating_sub(width(cell)));
            let _ = match head.is_figure {
                true => write!(text, "| {padding}{cell} "),
                false => write!(text, "| {cell}{padding} "),
            };
        }
        text.push_str("|\n");
    }
}

/// A cell in one line, with the characters escaped that Markdown would interpret. An interval in brackets needs no escaping: nothing
/// follows it that would make it a link.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '*' | '_' | '`' | '<' | '\\' => out.extend(['\\', character]),
            '\n' | '\r' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// The number of columns on a terminal: Chinese characters take two.
fn width(text: &str) -> usize {
    text.chars().map(|character| if ('\u{2e80}'..='\u{ffef}').contains(&character) { 2 } else { 1 }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_keeps_its_columns() {
        let mut table = Table::new("A *b*", ["type", "r/s", "说明"]).words_from(2);
        table.row(["x|y", "12.5", "a\nb"]);
        table.row(["long_name", "1,234.5"]);
        table.note("A note.");
        let expect = "**A \\*b\\***\n\n\
            | type       |     r/s | 说明 |\n\
            |------------|--------:|------|\n\
            | x\\|y       |    12.5 | a b  |\n\
            | long\\_name | 1,234.5 |      |\n\
            \nA note.\n";
        assert_eq!(table.markdown(), expect);
    }
}
