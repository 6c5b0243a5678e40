//! Text to tokens.

use super::ExpressionError;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Number(f64),
    /// Without its quotes; there are no escapes.
    Text(&'a str),
    Name(&'a str),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// Longer ones first, so that `<=` is not read as `<`.
const SYMBOLS: [&str; 22] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "!", "?", ":", ",", ".", "(",
    ")", "[", "]", "=",
];

/// Reads one token after another.
pub(super) struct Lexer<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    /// The next token and the byte where it begins.
    #[inline(never)]
    pub(super) fn next(&mut self) -> Result<(Token<'a>, usize), ExpressionError> {
        self.take_while(|byte| byte.is_ascii_whitespace());
        let start = self.position;
        let rest = &self.text[start..];
        let token = match rest.bytes().next() {
            None => Token::End,
            Some(byte) if byte.is_ascii_digit() => {
                let digits = self.take_while(|byte| byte.is_ascii_digit() || byte == b'.');
                let number = digits
                    .parse()
                    .map_err(|_| ExpressionError::Syntax { position: start });
                Token::Number(number?)
            }
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' => {
                Token::Name(self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
            }
            Some(b'"') => self.take_text(start)?,
            Some(_) => {
                let symbol = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol));
                let symbol = symbol.ok_or(ExpressionError::Character { position: start })?;
                self.position += symbol.len();
                Token::Symbol(symbol)
            }
        };
        Ok((token, start))
    }

    /// Takes ASCII bytes, so the position stays between characters.
    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let rest = &self.text[self.position..];
        let length = rest
            .bytes()
            .position(|byte| !accept(byte))
            .unwrap_or(rest.len());
        self.position += length;
        &rest[..length]
    }

    fn take_text(&mut self, start: usize) -> Result<Token<'a>, ExpressionError> {
        let inner = &self.text[start + 1..];
        let length = inner
            .find('"')
            .ok_or(ExpressionError::Syntax { position: start })?;
        self.position = start + 1 + length + 1;
        Ok(Token::Text(&inner[..length]))
    }
}
