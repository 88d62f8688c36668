//! Tables that fit a screen.
//!
//! Names are shortened in the middle until a table fits. Addresses are not shortened, because people copy them. An
//! address that is too long for its column gets a line of its own: above its row if it is in the first column, which
//! the row is about, and below it otherwise.

use comfy_table::{CellAlignment, Table, presets};

use super::{PLAIN, visible};

/// A column of names does not become narrower than this.
const NAME_MIN: usize = 8;
/// Spaces between two columns.
const GAP: usize = 2;

/// What the columns hold, by index.
pub(super) struct Layout<'a> {
    /// Columns that may be shortened.
    pub names: &'a [usize],
    /// Columns that must not be shortened.
    pub addresses: &'a [usize],
    /// Columns that are aligned to the right.
    pub numbers: &'a [usize],
}

/// A row of a table, and a note that is printed in lines of its own below it.
pub(super) struct Row<const N: usize> {
    pub cells: [String; N],
    pub note: String,
    /// The terminal style of the row. Empty for none.
    pub style: &'static str,
}

impl<const N: usize> Row<N> {
    pub(super) fn of(cells: [String; N]) -> Self {
        Self { cells, note: String::new(), style: "" }
    }

    pub(super) fn noted(cells: [String; N], note: String) -> Self {
        Self { cells, note, style: "" }
    }
}

/// A row with the address that is printed above it.
struct Laid<const N: usize> {
    above: Option<String>,
    row: Row<N>,
}

/// Renders the lines of a table, at most `width` characters each unless the numbers alone are wider. Returns an empty
/// string if there is no row.
pub(super) fn render<const N: usize>(
    width: usize,
    head: [&str; N],
    layout: &Layout<'_>,
    rows: impl Iterator<Item = Row<N>>,
) -> String {
    let mut rows: Vec<Laid<N>> = rows.map(|row| Laid { above: None, row: single_lines(row) }).collect();
    if rows.is_empty() {
        return String::new();
    }
    move_out_addresses(width, &head, layout, &mut rows);
    cut_names(width, &head, layout.names, &mut rows);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    table.add_rows(rows.iter().map(|laid| laid.row.cells.clone()));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP as u16));
        if layout.numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut lines = table.lines();
    let mut text = lines.next().map_or_else(String::new, |head| format!("{}\n", head.trim_end()));
    for (line, Laid { above, row }) in lines.zip(&rows) {
        let end = if row.style.is_empty() { "" } else { PLAIN };
        text.extend(above.iter().map(|address| format!("{}{address}{end}\n", row.style)));
        text += &format!("{}{}{end}\n", row.style, line.trim_end());
        let note = row.note.lines().flat_map(|line| wrapped(line, width.saturating_sub(2)));
        text.extend(note.filter(|line| !line.is_empty()).map(|line| format!("  {line}\n")));
    }
    text
}

/// Removes line breaks, which would make one row span several lines.
fn single_lines<const N: usize>(row: Row<N>) -> Row<N> {
    Row { cells: row.cells.map(|cell| visible(&cell).replace('\n', "\u{fffd}")), ..row }
}

/// Moves addresses to a line of their own if the table would not fit even with the shortest names.
fn move_out_addresses<const N: usize>(width: usize, head: &[&str; N], layout: &Layout<'_>, rows: &mut [Laid<N>]) {
    let widths = widths(head, rows);
    let is_address = |index: &usize| layout.addresses.contains(index);
    let title = |index: usize| head.get(index).map_or(0, |title| title.chars().count());
    let fixed = widths.iter().enumerate().filter(|(index, _)| !is_address(index)).map(|(index, width)| {
        if layout.names.contains(&index) { (*width).min(NAME_MIN.max(title(index))) } else { *width }
    });
    let left = width.saturating_sub(fixed.sum::<usize>() + GAP * (N - 1));
    let needed =
        widths.iter().enumerate().filter(|(index, _)| is_address(index)).map(|(_, width)| width).sum::<usize>();
    if needed <= left {
        return;
    }
    // Addresses that fit their share stay in their column.
    let share = left / layout.addresses.len().max(1);
    for Laid { above, row } in rows {
        for &index in layout.addresses {
            let allowed = share.max(title(index));
            let Some(cell) = row.cells.get_mut(index).filter(|cell| cell.chars().count() > allowed) else { continue };
            let address = std::mem::take(cell);
            if index == 0 {
                *above = Some(address);
            } else {
                let title = head.get(index).copied().unwrap_or_default().to_lowercase();
                let end = if row.note.is_empty() { "" } else { "\n" };
                row.note = format!("{title} {address}{end}{}", row.note);
            }
        }
    }
}

/// Shortens the longest names until the table fits the screen.
fn cut_names<const N: usize>(width: usize, head: &[&str; N], names: &[usize], rows: &mut [Laid<N>]) {
    let mut widths = widths(head, rows);
    while widths.iter().sum::<usize>() + GAP * (N - 1) > width {
        let widest = widths.iter_mut().enumerate().filter(|(index, _)| names.contains(index));
        match widest.map(|(_, width)| width).max_by_key(|width| **width).filter(|width| **width > NAME_MIN) {
            Some(width) => *width -= 1,
            None => break,
        }
    }
    for Laid { row, .. } in rows {
        for (width, cell) in widths.iter().zip(&mut row.cells) {
            *cell = cut(cell, *width);
        }
    }
}

fn widths<const N: usize>(head: &[&str; N], rows: &[Laid<N>]) -> [usize; N] {
    let mut widths = head.map(|title| title.chars().count());
    for Laid { row, .. } in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Returns the beginning and the end of a name whose middle does not fit.
pub(super) fn cut(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let (first, last) = (width / 2, width.saturating_sub(1 + width / 2));
    name.chars().take(first).chain(['\u{2026}']).chain(name.chars().skip(count - last)).collect()
}

/// Breaks a line at spaces into lines of at most `width` characters. The following lines have the indentation of the
/// first.
pub(super) fn wrapped(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let indent: String = line.chars().take_while(|c| *c == ' ').collect();
    let mut lines = vec![indent.clone()];
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let Some(last) = lines.last_mut() else { break };
        if last.trim().is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_the_middle() {
        let check = |width, expect: &str| assert_eq!(cut("abcdefgh", width), expect, "{width}");
        check(9, "abcdefgh");
        check(8, "abcdefgh");
        check(7, "abc\u{2026}fgh");
        check(6, "abc\u{2026}gh");
    }

    #[test]
    fn lines_are_broken_at_spaces() {
        let check = |line: &str, expect: &[&str]| assert_eq!(wrapped(line, 10), expect, "{line:?}");
        check("", &[""]);
        check("a short 10", &["a short 10"]);
        check("a line of 11", &["a line of", "11"]);
        check("  indented and long", &["  indented", "  and long"]);
        check("a wordlongerthanthat", &["a", "wordlongerthanthat"]);
    }

    #[test]
    fn an_address_that_does_not_fit_has_a_line_of_its_own() {
        let row = |cells: [&str; 4], note: &str| Row::noted(cells.map(str::to_owned), note.to_owned());
        let rows = || {
            [
                row(
                    ["[2001:db8:1234:5678:9abc:def0:1234:5678]:8443", "a-cluster-in-the-north", "10.0.0.1:80", "1"],
                    "",
                ),
                row(["10.0.0.1:80", "shop", "[2001:db8::1234:5678:9abc:def0]:80", "23"], "refused"),
            ]
        };
        let layout = Layout { names: &[1], addresses: &[0, 2], numbers: &[3] };
        let text = render(48, ["ENDPOINT", "CLUSTER", "FROM", "N"], &layout, rows().into_iter());
        let expect = "\
ENDPOINT     CLUSTER             FROM          N
[2001:db8:1234:5678:9abc:def0:1234:5678]:8443
             a-cluster…he-north  10.0.0.1:80   1
10.0.0.1:80  shop                             23
  from [2001:db8::1234:5678:9abc:def0]:80
  refused
";
        assert_eq!(text, expect);
        let wide = render(200, ["ENDPOINT", "CLUSTER", "FROM", "N"], &layout, rows().into_iter());
        assert_eq!(wide.lines().count(), 4, "{wide}");
    }
}
