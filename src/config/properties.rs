//! Reads the text of a properties file as `java.util.Properties.load` does: comments with `#` or `!`, keys that
//! end at `=`, `:` or a blank, lines that go on after a backslash, escapes.

/// One setting of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    /// The line on which it begins, counted from 1.
    pub line: usize,
    /// The key, escapes resolved.
    pub key: String,
    /// The value, escapes resolved. Blanks at its end belong to it; who reads values cuts them off.
    pub value: String,
}

/// All settings in the order of the file, and for each line that cannot be read its number and what is wrong.
///
/// Java refuses a file for one thing only: `\u` without four hexadecimal digits.
pub fn parse_properties(text: &str) -> (Vec<Property>, Vec<(usize, String)>) {
    let (mut properties, mut mistakes) = (Vec::new(), Vec::new());
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, logical) in logical_lines(text) {
        let (key, value) = split_at_separator(&logical);
        match (unescape(key), unescape(value)) {
            (Ok(key), Ok(value)) => properties.push(Property { line, key, value }),
            (Err(mistake), _) | (_, Err(mistake)) => mistakes.push((line, mistake)),
        }
    }
    (properties, mistakes)
}

fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\u{c}')
}

/// Joins lines that end in an odd number of backslashes with the next, and leaves out comments and empty lines.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    for (index, line) in text.split('\n').enumerate() {
        let line = line.trim_start_matches(is_blank);
        if !goes_on && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let backslashes = line.bytes().rev().take_while(|byte| *byte == b'\\').count();
        let continued = backslashes % 2 == 1;
        let content = if continued { &line[..line.len() - 1] } else { line };
        match lines.last_mut() {
            Some((_, last)) if goes_on => last.push_str(content),
            _ => lines.push((index + 1, content.to_owned())),
        }
        goes_on = continued;
    }
    // A backslash before an empty line or the end leaves a line without anything.
    lines.retain(|(_, line)| !line.is_empty());
    lines
}

/// The key ends at the first `=`, `:` or blank that no backslash stands before; blanks and one separator after it
/// are no part of the value.
fn split_at_separator(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line
        .char_indices()
        .find(|(_, letter)| {
            let is_end = !escaped && (matches!(letter, '=' | ':') || is_blank(*letter));
            escaped = *letter == '\\' && !escaped;
            is_end
        })
        .map_or(line.len(), |(at, _)| at);
    let rest = line[end..].trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..end], rest.trim_start_matches(is_blank))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut units: Vec<u16> = Vec::new();
    let mut letters = text.chars();
    let mut buffer = [0; 2];
    while let Some(letter) = letters.next() {
        let plain = match letter {
            '\\' => match letters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let rest = letters.as_str();
                    let unit = rest
                        .get(..4)
                        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
                        .and_then(|digits| u16::from_str_radix(digits, 16).ok())
                        .ok_or("\\u must be followed by four hexadecimal digits; a plain backslash is written \\\\")?;
                    units.push(unit);
                    letters = rest[4..].chars();
                    continue;
                }
                Some(other) => other,
                None => continue,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut buffer));
    }
    // Escapes may spell a letter beyond U+FFFF as two halves, so the halves are put together at the end.
    Ok(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(usize, &str, &str)]) {
        let (found, mistakes) = parse_properties(text);
        assert_eq!(mistakes, [], "{text:?}");
        let found: Vec<_> = found.iter().map(|p| (p.line, p.key.as_str(), p.value.as_str())).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    /// Files that worked with Kafka must mean the same here; each line shows one rule of Java's reader.
    #[test]
    fn reads_what_java_reads() {
        check("a=1\nb:2\nc 3\n", &[(1, "a", "1"), (2, "b", "2"), (3, "c", "3")]);
        check("  a  =  1 \t\n", &[(1, "a", "1 \t")]);
        check("a\t:\t=x", &[(1, "a", "=x")]);
        check("a\nb=\nc =", &[(1, "a", ""), (2, "b", ""), (3, "c", "")]);
        check("# no\n! no\n\n   # no\na=#yes", &[(5, "a", "#yes")]);
        check("a=1\\\n   ,2\\\n\t,3\nb=4", &[(1, "a", "1,2,3"), (4, "b", "4")]);
        check("a=1\\\\\nb=2", &[(1, "a", "1\\"), (2, "b", "2")]);
        check("a=1\\\n# part of it\nb=2", &[(1, "a", "1# part of it"), (3, "b", "2")]);
        check("a=1\\\n\nb=2", &[(1, "a", "1"), (3, "b", "2")]);
        check("a=C:\\\\kafka\\\\logs", &[(1, "a", "C:\\kafka\\logs")]);
        check("a\\:b\\=c\\ d=e", &[(1, "a:b=c d", "e")]);
        check("a=\\u4f60\\u597D \\ud83d\\ude00 \\q\\t", &[(1, "a", "你好 😀 q\t")]);
        check("a=1\r\nb=2\rc=3", &[(1, "a", "1"), (2, "b", "2"), (3, "c", "3")]);
        check("a=1\na=2", &[(1, "a", "1"), (2, "a", "2")]);
        check("\u{feff}a=1", &[(1, "a", "1")]);
        check("=x", &[(1, "", "x")]);
        check("a=1\\", &[(1, "a", "1")]);
        check("\\\n\n", &[]);
        check("", &[]);
    }

    #[test]
    fn a_cut_unicode_escape_is_told_with_its_line() {
        for text in ["ok=1\nbad=\\u12", "ok=1\nbad=\\u12g4", "ok=1\nbad=\\u12é"] {
            let (_, mistakes) = parse_properties(text);
            assert_eq!(mistakes.len(), 1, "{text}");
            assert_eq!(mistakes[0].0, 2, "{text}");
        }
    }
}
