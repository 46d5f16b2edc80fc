//! Splits text into commands and words like a shell (POSIX shell command language, section 2.2), with the `$'…'` of bash.
//!
//! Runs nothing and expands nothing: a variable stays a variable. Knows no options of curl.

use std::{iter::Peekable, str::Chars};

use super::super::{
    Error,
    import_tree::{ImportPiece, ImportText},
};

/// One command with its words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// The line on which it begins, counted from 1.
    pub(super) line: usize,
    /// The command itself and its arguments.
    pub(super) words: Vec<ImportText>,
    /// A construct that only a shell can execute.
    pub(super) beyond: Option<&'static str>,
}

/// Reads all commands of a text.
pub(super) fn commands(text: &str) -> Result<Vec<ShellCommand>, Error> {
    let mut reader = ShellReader {
        chars: text.chars().peekable(),
        line: 1,
        command: ShellCommand::default(),
        word: None,
        done: Vec::new(),
    };
    reader.run()?;
    Ok(reader.done)
}

struct ShellReader<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
    command: ShellCommand,
    /// The current word; an empty pair of quotes begins one, too.
    word: Option<ImportText>,
    done: Vec<ShellCommand>,
}

impl ShellReader<'_> {
    fn run(&mut self) -> Result<(), Error> {
        while let Some(char) = self.next() {
            match char {
                '\n' | ';' => self.end_command(),
                '&' | '|' if self.word.as_ref().is_none_or(|word| !word.is_empty()) => self.end_command(),
                '#' if self.word.is_none() => self.pass_comment(),
                '<' | '>' => self.redirection(),
                '^' if matches!(self.chars.peek(), Some('"' | '\n' | '\r')) => {
                    return Err(self.wrong("it is quoted for the command prompt of Windows"));
                }
                '\\' => self.escape(),
                '\'' => self.single_quotes()?,
                '"' => self.double_quotes()?,
                '$' => self.dollar()?,
                '`' => self.backticks()?,
                char if char.is_whitespace() => self.end_word(),
                char => self.put(char),
            }
        }
        self.end_command();
        Ok(())
    }

    fn next(&mut self) -> Option<char> {
        let char = self.chars.next()?;
        self.line += usize::from(char == '\n');
        Some(char)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::Curl { what: what.to_owned(), line: self.line }
    }

    fn word(&mut self) -> &mut ImportText {
        if self.command.words.is_empty() && self.word.is_none() {
            self.command.line = self.line;
        }
        self.word.get_or_insert_default()
    }

    fn put(&mut self, char: char) {
        self.word().push_str(char.encode_utf8(&mut [0; 4]));
    }

    fn end_word(&mut self) {
        self.command.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.done.push(command);
        }
    }

    fn pass_comment(&mut self) {
        while self.chars.next_if(|char| *char != '\n').is_some() {}
    }

    /// The file of a redirection is not an argument; a number before it is the descriptor.
    fn redirection(&mut self) {
        let is_descriptor =
            |word: &ImportText| word.as_literal().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        if self.word.as_ref().is_some_and(is_descriptor) {
            self.word = None;
        }
        self.end_word();
        while self.chars.next_if(|char| "<>& \t".contains(*char)).is_some() {}
        while self.chars.next_if(|char| !char.is_whitespace() && !";|&".contains(*char)).is_some() {}
    }

    fn escape(&mut self) {
        match self.next() {
            // The line continues.
            Some('\n') | None => {}
            Some('\r') if self.chars.peek() == Some(&'\n') => {
                self.next();
            }
            Some(char) => self.put(char),
        }
    }

    fn single_quotes(&mut self) -> Result<(), Error> {
        self.word();
        loop {
            match self.next() {
                Some('\'') => return Ok(()),
                Some(char) => self.put(char),
                None => return Err(self.wrong("a single quote has no end")),
            }
        }
    }

    fn double_quotes(&mut self) -> Result<(), Error> {
        self.word();
        loop {
            match self.next() {
                Some('"') => return Ok(()),
                Some('\\') => match self.next() {
                    Some('\n') | None => {}
                    Some(char @ ('$' | '`' | '"' | '\\')) => self.put(char),
                    Some(char) => {
                        self.put('\\');
                        self.put(char);
                    }
                },
                Some('$') if self.chars.peek() == Some(&'\'') => self.put('$'),
                Some('$') => self.dollar()?,
                Some('`') => self.backticks()?,
                Some(char) => self.put(char),
                None => return Err(self.wrong("a double quote has no end")),
            }
        }
    }

    fn backticks(&mut self) -> Result<(), Error> {
        self.command.beyond = Some("the output of another command");
        loop {
            match self.next() {
                Some('`') => return Ok(()),
                Some(_) => {}
                None => return Err(self.wrong("a backtick has no end")),
            }
        }
    }

    fn dollar(&mut self) -> Result<(), Error> {
        match self.chars.peek() {
            Some('\'') => {
                self.next();
                self.c_quotes()
            }
            Some('(') => self.substitution(),
            Some('{') => {
                self.next();
                let mut name = String::new();
                loop {
                    match self.next() {
                        Some('}') => break,
                        Some(char) => name.push(char),
                        None => return Err(self.wrong("a brace has no end")),
                    }
                }
                self.variable(name);
                Ok(())
            }
            Some(char) if char.is_ascii_alphabetic() || *char == '_' => {
                let mut name = String::new();
                while let Some(char) = self.chars.next_if(|char| char.is_ascii_alphanumeric() || *char == '_') {
                    name.push(char);
                }
                self.variable(name);
                Ok(())
            }
            _ => {
                self.put('$');
                Ok(())
            }
        }
    }

    fn variable(&mut self, name: String) {
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        if is_name {
            self.word().push(ImportPiece::Variable(name));
        } else {
            self.command.beyond = Some("an expansion of the shell");
        }
    }

    fn substitution(&mut self) -> Result<(), Error> {
        self.command.beyond = Some("the output of another command");
        let mut depth = 0_usize;
        loop {
            match self.next() {
                Some('(') => depth += 1,
                Some(')') if depth == 1 => return Ok(()),
                Some(')') => depth -= 1,
                Some(_) => {}
                None => return Err(self.wrong("a parenthesis has no end")),
            }
        }
    }

    /// The escapes of C, as browsers write nonprintable characters.
    fn c_quotes(&mut self) -> Result<(), Error> {
        self.word();
        // Byte escapes may be parts of one character.
        let mut bytes = Vec::new();
        loop {
            match self.next() {
                Some('\'') => break,
                Some('\\') => self.c_escape(&mut bytes),
                Some(char) => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
                None => return Err(self.wrong("a $' has no end")),
            }
        }
        match String::from_utf8(bytes) {
            Ok(text) => self.word().push_str(&text),
            Err(_) => self.command.beyond = Some("bytes that are not UTF-8 text"),
        }
        Ok(())
    }

    fn c_escape(&mut self, bytes: &mut Vec<u8>) {
        let Some(char) = self.next() else { return };
        let byte = match char {
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'a' => 7,
            'b' => 8,
            'e' | 'E' => 27,
            'f' => 12,
            'v' => 11,
            '0'..='7' => {
                let first = char.to_digit(8).unwrap_or(0);
                // Three digits can exceed a byte; bash truncates the value as well.
                (self.digits(8, 2).map_or(first, |(value, n)| (first << (3 * n)) | value) & 0xff) as u8
            }
            'x' => match self.digits(16, 2) {
                Some((value, _)) => (value & 0xff) as u8,
                None => b'x',
            },
            'u' | 'U' => {
                let n_max = if char == 'u' { 4 } else { 8 };
                let read = self.digits(16, n_max).and_then(|(value, _)| char::from_u32(value));
                bytes.extend(read.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut [0; 4]).bytes());
                return;
            }
            char => {
                bytes.extend(char.encode_utf8(&mut [0; 4]).bytes());
                return;
            }
        };
        bytes.push(byte);
    }

    /// Reads up to `n_max` digits. Returns the value and their number.
    fn digits(&mut self, radix: u32, n_max: u32) -> Option<(u32, u32)> {
        let (mut value, mut n) = (0_u32, 0);
        while n < n_max {
            let Some(digit) = self.chars.peek().and_then(|char| char.to_digit(radix)) else { break };
            self.next();
            value = value.wrapping_mul(radix).wrapping_add(digit);
            n += 1;
        }
        (n > 0).then_some((value, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let commands = commands(text).unwrap();
        commands.iter().map(|command| command.words.iter().map(ToString::to_string).collect()).collect()
    }

    #[test]
    fn words_are_cut_as_a_shell_cuts_them() {
        for (text, expected) in [
            ("a  b\tc", vec!["a", "b", "c"]),
            (r#"a 'b c' "d e" f\ g"#, vec!["a", "b c", "d e", "f g"]),
            ("a \\\n  b \\\r\n c", vec!["a", "b", "c"]),
            ("a '' \"\"", vec!["a", "", ""]),
            (r#"'it'\''s' "say \"no\" \n""#, vec!["it's", r#"say "no" \n"#]),
            (r"$'a\n\t\'\u00e9\x41\101\xc3\xa9'", vec!["a\n\t'éAAé"]),
            ("a # b\n", vec!["a"]),
            ("a#b", vec!["a#b"]),
            ("a > b 2>&1 c", vec!["a", "c"]),
            ("a $X \"${Y}z\" $", vec!["a", "${X}", "${Y}z", "$"]),
            ("a 'b$X'", vec!["a", "b$X"]),
        ] {
            assert_eq!(words(text), [expected], "{text}");
        }
    }

    #[test]
    fn commands_end_at_lines_and_separators() {
        assert_eq!(
            words("a b;c\nd && e | f & g"),
            [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"], vec!["f"], vec!["g"]]
        );
        assert_eq!(commands("a\n\nb").unwrap()[1].line, 3);
    }

    #[test]
    fn what_only_a_shell_can_do_is_told() {
        for text in ["a $(b (c))", "a `b`", "a ${b:-c}", r"a $'\xff'"] {
            assert!(commands(text).unwrap()[0].beyond.is_some(), "{text}");
        }
    }

    #[test]
    fn quotes_without_end_are_named_with_their_line() {
        for text in ["a\n'b", "a\n\"b", "a\n$'b", "a\n`b", "a\n$(b", "a\n${b"] {
            let error = commands(text).unwrap_err();
            assert!(matches!(error, Error::Curl { line: 2, .. }), "{text}: {error}");
        }
        assert!(commands("curl ^\"http://a^\" ^\n -H ^\"b^\"").is_err());
    }
}
