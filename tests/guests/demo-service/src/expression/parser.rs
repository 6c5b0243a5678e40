//! Tokens to a tree, by recursive descent: one function a level of precedence.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::ExpressionError;
use super::lexer::{Lexer, Token};
use super::syntax::{Expression, Function, Operator};

const MAX_LENGTH: usize = 2048;
/// Levels of recursion: with `MAX_CHAINED` this bounds the stack of parser and evaluator.
const MAX_DEPTH: usize = 64;
/// Operators in rows, which make a tree deep without recursion.
const MAX_CHAINED: usize = 64;

type Parsed = Result<Expression, ExpressionError>;

/// Reads a whole expression of at most 2048 bytes, 64 levels and 64 operators in rows.
#[inline(never)]
pub(crate) fn parse(text: &str) -> Parsed {
    if text.len() > MAX_LENGTH {
        return Err(ExpressionError::TooLong);
    }
    let mut lexer = Lexer::new(text);
    let (token, position) = lexer.next()?;
    let mut parser = Parser {
        lexer,
        token,
        position,
        depth: 0,
        chained: 0,
    };
    let expression = parser.choice()?;
    if parser.token == Token::End {
        Ok(expression)
    } else {
        Err(parser.unexpected())
    }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    position: usize,
    depth: usize,
    chained: usize,
}

impl<'a> Parser<'a> {
    /// `condition ? value : value`
    fn choice(&mut self) -> Parsed {
        self.enter()?;
        let condition = self.disjunction()?;
        let expression = if self.accept("?")? {
            let then = self.choice()?;
            self.expect(":")?;
            let otherwise = self.choice()?;
            Expression::Choice(Box::new(condition), Box::new(then), Box::new(otherwise))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn disjunction(&mut self) -> Parsed {
        self.chain(&[("||", Operator::Or)], Self::conjunction)
    }

    fn conjunction(&mut self) -> Parsed {
        self.chain(&[("&&", Operator::And)], Self::comparison)
    }

    /// Comparisons do not chain: `a < b < c` is an error.
    fn comparison(&mut self) -> Parsed {
        const OPERATORS: [(&str, Operator); 6] = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let left = self.sum()?;
        match self.operator(&OPERATORS)? {
            None => Ok(left),
            Some(operator) => Ok(binary(operator, left, self.sum()?)),
        }
    }

    fn sum(&mut self) -> Parsed {
        self.chain(
            &[("+", Operator::Add), ("-", Operator::Subtract)],
            Self::product,
        )
    }

    fn product(&mut self) -> Parsed {
        self.chain(
            &[("*", Operator::Multiply), ("/", Operator::Divide)],
            Self::unary,
        )
    }

    fn unary(&mut self) -> Parsed {
        self.enter()?;
        let expression = if self.accept("!")? {
            Expression::Not(Box::new(self.unary()?))
        } else if self.accept("-")? {
            Expression::Negate(Box::new(self.unary()?))
        } else {
            self.postfix()?
        };
        self.depth -= 1;
        Ok(expression)
    }

    /// `value.name[index]…`
    fn postfix(&mut self) -> Parsed {
        let mut expression = self.primary()?;
        loop {
            expression = if self.accept(".")? {
                self.lengthen()?;
                let name = self.name()?;
                Expression::Member(Box::new(expression), name.to_string())
            } else if self.accept("[")? {
                self.lengthen()?;
                let index = self.choice()?;
                self.expect("]")?;
                Expression::Index(Box::new(expression), Box::new(index))
            } else {
                return Ok(expression);
            };
        }
    }

    fn primary(&mut self) -> Parsed {
        let (token, unexpected) = (self.token, self.unexpected());
        self.advance()?;
        match token {
            Token::Number(number) => Ok(Expression::Number(number)),
            Token::Text(text) => Ok(Expression::Text(text.to_string())),
            Token::Name("null") => Ok(Expression::Null),
            Token::Name("true") => Ok(Expression::Bool(true)),
            Token::Name("false") => Ok(Expression::Bool(false)),
            Token::Name(name) if self.accept("(")? => self.call(name),
            Token::Name(name) => Ok(Expression::Name(name.to_string())),
            Token::Symbol("(") => {
                let inner = self.choice()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Symbol(_) | Token::End => Err(unexpected),
        }
    }

    /// The arguments of a call, whose opening bracket is read.
    fn call(&mut self, name: &str) -> Parsed {
        let function = Function::named(name).ok_or(ExpressionError::UnknownFunction)?;
        let mut arguments = Vec::new();
        if !self.accept(")")? {
            loop {
                arguments.push(self.choice()?);
                if !self.accept(",")? {
                    break;
                }
            }
            self.expect(")")?;
        }
        let (least, most) = function.arguments();
        if (least..=most).contains(&arguments.len()) {
            Ok(Expression::Call(function, arguments))
        } else {
            Err(ExpressionError::Arguments)
        }
    }

    /// A left-associative row of one level of precedence.
    fn chain(
        &mut self,
        operators: &[(&'static str, Operator)],
        operand: fn(&mut Self) -> Parsed,
    ) -> Parsed {
        let mut left = operand(self)?;
        while let Some(operator) = self.operator(operators)? {
            self.lengthen()?;
            left = binary(operator, left, operand(self)?);
        }
        Ok(left)
    }

    fn operator(
        &mut self,
        operators: &[(&'static str, Operator)],
    ) -> Result<Option<Operator>, ExpressionError> {
        for (symbol, operator) in operators {
            if self.accept(symbol)? {
                return Ok(Some(*operator));
            }
        }
        Ok(None)
    }

    fn name(&mut self) -> Result<&'a str, ExpressionError> {
        let Token::Name(name) = self.token else {
            return Err(self.unexpected());
        };
        self.advance()?;
        Ok(name)
    }

    fn accept(&mut self, symbol: &'static str) -> Result<bool, ExpressionError> {
        let found = self.token == Token::Symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), ExpressionError> {
        if self.accept(symbol)? {
            Ok(())
        } else {
            Err(self.unexpected())
        }
    }

    fn advance(&mut self) -> Result<(), ExpressionError> {
        (self.token, self.position) = self.lexer.next()?;
        Ok(())
    }

    fn enter(&mut self) -> Result<(), ExpressionError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(ExpressionError::TooDeep)
        } else {
            Ok(())
        }
    }

    fn lengthen(&mut self) -> Result<(), ExpressionError> {
        self.chained += 1;
        if self.chained > MAX_CHAINED {
            Err(ExpressionError::TooDeep)
        } else {
            Ok(())
        }
    }

    fn unexpected(&self) -> ExpressionError {
        ExpressionError::Syntax {
            position: self.position,
        }
    }
}

fn binary(operator: Operator, left: Expression, right: Expression) -> Expression {
    Expression::Binary(operator, Box::new(left), Box::new(right))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn precedence_and_association() {
        let equal = [
            ("1 + 2 * 3", "1 + (2 * 3)"),
            ("1 - 2 - 3", "(1 - 2) - 3"),
            ("a || b && c == d", "a || (b && (c == d))"),
            ("!a.b[1] && c", "(!((a.b)[1])) && c"),
            ("a ? b : c ? d : e", "a ? b : (c ? d : e)"),
            ("-a * b", "(-a) * b"),
        ];
        for (short, explicit) in equal {
            assert_eq!(parse(short).unwrap(), parse(explicit).unwrap(), "{short}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        assert_eq!(parse("1 + "), Err(ExpressionError::Syntax { position: 4 }));
        assert_eq!(
            parse("a @ b"),
            Err(ExpressionError::Character { position: 2 })
        );
        assert_eq!(parse("a = b"), Err(ExpressionError::Syntax { position: 2 }));
        assert_eq!(parse("(a"), Err(ExpressionError::Syntax { position: 2 }));
        assert_eq!(
            parse("\"open"),
            Err(ExpressionError::Syntax { position: 0 })
        );
        assert_eq!(parse("1.2.3"), Err(ExpressionError::Syntax { position: 0 }));
        assert_eq!(
            parse("a < b < c"),
            Err(ExpressionError::Syntax { position: 6 })
        );
        assert_eq!(parse("frob(1)"), Err(ExpressionError::UnknownFunction));
        assert_eq!(parse("sum()"), Err(ExpressionError::Arguments));
        assert_eq!(parse("é"), Err(ExpressionError::Character { position: 0 }));
    }

    #[test]
    fn depth_and_length_are_bounded_in_every_direction() {
        let bombs = [
            format!("{}1{}", "(".repeat(500), ")".repeat(500)),
            format!("{}1", "-".repeat(500)),
            format!("1{}", "+1".repeat(500)),
            format!("a{}", ".a".repeat(500)),
            format!("a{}", "[0]".repeat(500)),
            format!("{}1", "1?1:".repeat(400)),
            format!("{}1{}", "abs(".repeat(300), ")".repeat(300)),
        ];
        for bomb in bombs {
            assert_eq!(
                parse(&bomb),
                Err(ExpressionError::TooDeep),
                "{}",
                &bomb[..10]
            );
        }
        assert_eq!(
            parse(&" ".repeat(MAX_LENGTH + 1)),
            Err(ExpressionError::TooLong)
        );
        assert!(parse(&format!("{}1{}", "(".repeat(20), ")".repeat(20))).is_ok());
    }
}
