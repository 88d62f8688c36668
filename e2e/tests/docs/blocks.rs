//! The code in a page of Markdown: fenced blocks, indented blocks, spans.

/// The content between two fences.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the opening fence, counted from 1.
    pub line: usize,
    /// The first word after the opening fence.
    pub language: String,
    /// The text with line ends, and without the indentation of the fence.
    pub text: String,
}

pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (index, line) in page.lines().enumerate() {
        let indentation = line.len() - line.trim_start().len();
        let fence = line.trim_start().strip_prefix("```");
        open = match (open, fence) {
            (None, Some(info)) => {
                let language = info.split([' ', ',']).next().unwrap_or_default().to_owned();
                Some((indentation, Block { line: index + 1, language, text: String::new() }))
            }
            (Some((_, block)), Some(_)) => {
                blocks.push(block);
                None
            }
            (Some((indentation, mut block)), None) => {
                block.text += line.get(indentation..).unwrap_or_default();
                block.text.push('\n');
                Some((indentation, block))
            }
            (None, None) => None,
        };
    }
    blocks
}

/// The lines, counted from 1, at which code begins that is indented instead of fenced.
pub fn indented(page: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut fenced, mut after_blank) = (false, true);
    for (index, line) in page.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced && after_blank && line.starts_with("    ") && !line.trim_start().starts_with("```") {
            found.push(index + 1);
        }
        after_blank = line.trim().is_empty();
    }
    found
}

/// Spans of code in the text that begin with `steelyard`, with their lines.
pub fn spans(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in page.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("steelyard "));
        found.extend(spans.map(|span| (index + 1, span.to_owned())));
    }
    found
}

#[test]
fn code_is_found() {
    let page = "a\n\n```sh\nb\n```\n\n- c\n\n  ```yaml,x\n  d: 1\n    e: 2\n  ```\n\n    indented\n\n`steelyard check -c f` and `other`\n";
    let block = |line, language: &str, text: &str| Block { line, language: language.to_owned(), text: text.to_owned() };
    assert_eq!(blocks(page), [block(3, "sh", "b\n"), block(9, "yaml", "d: 1\n  e: 2\n")]);
    assert_eq!(indented(page), [14]);
    assert_eq!(spans(page), [(16, "steelyard check -c f".to_owned())]);
}
