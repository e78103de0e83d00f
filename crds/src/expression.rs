//! Compiles expressions: a subset of CEL without loops. The crate `cel` parses them. Names, types and size are checked
//! here, so that a sidecar meets no type error.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::parser::Parser;
use http::HeaderName;
use sluice_config::expression::{Attribute, Comparison, Expression, Field, Node, Operator, TextTest};

#[cfg(test)]
mod tests;

/// Name of the thread on which an expression is parsed. A panic there ends nothing else.
pub const EXPRESSION_THREAD: &str = "sluice-expression";
/// Length of the longest expression, in bytes. The schema bounds its characters.
const MAX_LENGTH: usize = 4096;
/// Size of the stack on which an expression is parsed, in bytes. The system provides what is used of it.
const STACK: usize = 64 << 20;
/// Largest number of parts inside each other.
const MAX_DEPTH: u16 = 32;
/// Beginnings of the names of CEL's functions about time.
const TIMES: [&str; 5] = ["get", "now", "timestamp", "duration", "date"];
/// Largest number of parts.
const MAX_PARTS: usize = 256;

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Bool,
    Int,
    Text,
}

impl Type {
    /// Returns the name of the type in CEL, with its article.
    fn phrase(self) -> &'static str {
        match self {
            Self::Bool => "a bool",
            Self::Int => "an int",
            Self::Text => "a string",
        }
    }
}

/// A map of named values of a request.
#[derive(Debug, Clone, Copy)]
enum Map {
    Headers,
    Query,
    Cookies,
}

/// Compiles a condition, or returns why it cannot be one, as the end of a sentence.
pub(crate) fn compile_condition(text: &str) -> Result<Expression, String> {
    match compile(text)? {
        (expression, Type::Bool) => Ok(expression),
        (_, other) => {
            Err(format!("is {}, and a condition must be a bool: compare it with something", other.phrase()))
        }
    }
}

/// Compiles the cost of a request, or returns why an expression cannot be one, as the end of a sentence.
pub(crate) fn compile_cost(text: &str) -> Result<Expression, String> {
    match compile(text)? {
        (expression, Type::Int) => Ok(expression),
        (_, other) => Err(format!("is {}, and a cost must be an int", other.phrase())),
    }
}

/// Compiles a part of a key, or returns why an expression cannot be one, as the end of a sentence.
pub(crate) fn compile_text(text: &str) -> Result<Expression, String> {
    match compile(text)? {
        (expression, Type::Text) => Ok(expression),
        (_, other) => Err(format!(
            "is {}, and a part of a key must be a string: write a condition as '... ? \"a\" : \"b\"'",
            other.phrase()
        )),
    }
}

fn compile(text: &str) -> Result<(Expression, Type), String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("has more than {MAX_LENGTH} bytes"));
    }
    // The parser and the drop of what it returns recurse for each part inside another.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(EXPRESSION_THREAD.to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, || parse(text));
        let parsed = thread.map_err(|error| format!("cannot be parsed now: {error}"))?.join();
        parsed.unwrap_or_else(|_| Err("cannot be parsed".to_owned()))
    })
}

fn parse(text: &str) -> Result<(Expression, Type), String> {
    let parser = Parser::new().max_recursion_depth(MAX_DEPTH).error_recovery_limit(1);
    let ast = parser.enable_optional_syntax(false).parse(text).map_err(|errors| {
        let error = errors.errors.first();
        let message = error.map(|error| error.msg.as_str()).unwrap_or_default();
        match error {
            _ if message.contains("Recursion limit") => {
                format!("has more than {MAX_DEPTH} parts inside each other")
            }
            Some(error) => {
                let message: String = message.lines().next().unwrap_or_default().chars().take(200).collect();
                let hint = if has_single_equals(text) { ". Write == to compare" } else { "" };
                format!(
                    "is not valid CEL at line {}, column {}: {message}{hint}",
                    error.pos.0,
                    error.pos.1 + 1
                )
            }
            None => "is not valid CEL".to_owned(),
        }
    })?;
    let mut compiler = Compiler { patterns: Vec::new(), parts: 0 };
    let (root, kind) = compiler.node(&ast, 0)?;
    Ok((Expression { patterns: compiler.patterns, root }, kind))
}

struct Compiler {
    patterns: Vec<String>,
    parts: usize,
}

type Typed = (Node, Type);

impl Compiler {
    fn node(&mut self, from: &IdedExpr, depth: u16) -> Result<Typed, String> {
        self.parts += 1;
        if depth > MAX_DEPTH || self.parts > MAX_PARTS {
            return Err(format!(
                "has more than {MAX_PARTS} parts, or more than {MAX_DEPTH} inside each other"
            ));
        }
        match &from.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(value) => Ok((Node::Bool(**value), Type::Bool)),
                LiteralValue::Int(value) => Ok((Node::Int(**value), Type::Int)),
                LiteralValue::String(value) => Ok((Node::Text(value.inner().to_owned()), Type::Text)),
                LiteralValue::Bytes(_)
                | LiteralValue::Double(_)
                | LiteralValue::Null
                | LiteralValue::UInt(_) => {
                    Err("has a value that is not a bool, an int or a string".to_owned())
                }
            },
            Expr::Select(select) => {
                if let Some(map) = map(&select.operand) {
                    let field = field(map, &select.field)?;
                    return Ok(if select.test {
                        (Node::HasField(field), Type::Bool)
                    } else {
                        (Node::Field(field), Type::Text)
                    });
                }
                match attribute(from).filter(|_| !select.test) {
                    Some(attribute) => Ok((Node::Attribute(attribute), Type::Text)),
                    None => Err(unknown(from)),
                }
            }
            Expr::Call(call) => self.call(call, depth + 1),
            Expr::Comprehension(_) => {
                Err("has a loop, such as all() or exists(): these are not supported".to_owned())
            }
            Expr::Ident(_) => Err(unknown(from)),
            Expr::List(_) => Err("has a list that does not stand behind `in`".to_owned()),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                Err("has a map or a message, which are not supported".to_owned())
            }
        }
    }

    fn call(&mut self, CallExpr { func_name, target, args }: &CallExpr, depth: u16) -> Result<Typed, String> {
        let name = func_name.as_str();
        let comparison = match name {
            operators::EQUALS => Some(Comparison::Equal),
            operators::NOT_EQUALS => Some(Comparison::NotEqual),
            operators::LESS => Some(Comparison::Less),
            operators::LESS_EQUALS => Some(Comparison::LessOrEqual),
            operators::GREATER => Some(Comparison::Greater),
            operators::GREATER_EQUALS => Some(Comparison::GreaterOrEqual),
            _ => None,
        };
        let operator = match name {
            operators::ADD => Some(Operator::Add),
            operators::SUBSTRACT => Some(Operator::Subtract),
            operators::MULTIPLY => Some(Operator::Multiply),
            operators::DIVIDE => Some(Operator::Divide),
            operators::MODULO => Some(Operator::Remainder),
            _ => None,
        };
        let test = match name {
            "startsWith" => Some(TextTest::StartsWith),
            "endsWith" => Some(TextTest::EndsWith),
            "contains" => Some(TextTest::Contains),
            _ => None,
        };
        match (target.as_deref(), args.as_slice()) {
            (None, [left, right]) if let Some(comparison) = comparison => {
                let (left, right) = self.pair(left, right, depth)?;
                let has_order = matches!(comparison, Comparison::Equal | Comparison::NotEqual);
                if left.1 != right.1 || (left.1 == Type::Bool && !has_order) {
                    return Err(format!("compares {} with {}", left.1.phrase(), right.1.phrase()));
                }
                Ok((Node::Compare(comparison, Box::new((left.0, right.0))), Type::Bool))
            }
            (None, [left, right]) if let Some(operator) = operator => {
                let (left, right) = self.pair(left, right, depth)?;
                if (left.1, right.1) != (Type::Int, Type::Int) {
                    let are_texts = (left.1, right.1) == (Type::Text, Type::Text);
                    return Err(if are_texts && operator == Operator::Add {
                        "adds strings, but + is only for ints; to count by several values, list them as parts of the key".to_owned()
                    } else {
                        "calculates with something that is no int".to_owned()
                    });
                }
                Ok((Node::Calculate(operator, Box::new((left.0, right.0))), Type::Int))
            }
            (Some(text), [other]) if let Some(test) = test => {
                let pair = (self.text(text, depth)?, self.text(other, depth)?);
                Ok((Node::Test(test, Box::new(pair)), Type::Bool))
            }
            (None, parts) if name == operators::LOGICAL_AND || name == operators::LOGICAL_OR => {
                let mut all = Vec::new();
                self.flatten(name, parts, depth, &mut all)?;
                let node = if name == operators::LOGICAL_AND { Node::All(all) } else { Node::Any(all) };
                Ok((node, Type::Bool))
            }
            (None, [inner]) if name == operators::LOGICAL_NOT => {
                Ok((Node::Not(Box::new(self.bool(inner, depth)?)), Type::Bool))
            }
            (None, [inner]) if name == operators::NEGATE => match self.node(inner, depth)? {
                (inner, Type::Int) => Ok((Node::Negate(Box::new(inner)), Type::Int)),
                (_, other) => Err(format!("negates {}", other.phrase())),
            },
            (None, [condition, yes, no]) if name == operators::CONDITIONAL => {
                let condition = self.bool(condition, depth)?;
                let (yes, no) = self.pair(yes, no, depth)?;
                if yes.1 != no.1 {
                    return Err(format!(
                        "has {} before and {} behind the colon of a condition",
                        yes.1.phrase(),
                        no.1.phrase()
                    ));
                }
                Ok((Node::If(Box::new((condition, yes.0, no.0))), yes.1))
            }
            (None, [from, key]) if name == operators::INDEX && map(from).is_some() => {
                let field = map(from).zip(text_of(key)).map(|(map, key)| field(map, key));
                let field = field.ok_or("has a name in brackets that is no string")??;
                Ok((Node::Field(field), Type::Text))
            }
            (None, [value, list]) if name == operators::IN => self.one_of(value, list, depth),
            (Some(text), [pattern]) if name == "matches" => {
                let pattern = text_of(pattern).ok_or("has a regular expression that is no string")?;
                let text = self.text(text, depth)?;
                self.patterns.push(pattern.to_owned());
                Ok((Node::Matches(Box::new(text), self.patterns.len() - 1), Type::Bool))
            }
            (Some(text), []) | (None, [text]) if name == "size" => {
                Ok((Node::Size(Box::new(self.text(text, depth)?)), Type::Int))
            }
            (Some(text), []) if name == "lowerAscii" => {
                Ok((Node::LowerAscii(Box::new(self.text(text, depth)?)), Type::Text))
            }
            (None, [text]) if name == "int" => {
                Ok((Node::ToInt(Box::new(self.text(text, depth)?)), Type::Int))
            }
            (None, [from, _]) if name == operators::INDEX => Err(unknown(from)),
            _ if TIMES.iter().any(|time| name.starts_with(time)) => {
                Err("asks for the time, which expressions do not know: a limit cannot depend on it"
                    .to_owned())
            }
            _ => Err(format!(
                "has an unknown function or operator {:?}: there are startsWith, endsWith, contains, matches, size, \
                 lowerAscii and int",
                name.trim_matches(['_', '@'])
            )),
        }
    }

    fn one_of(&mut self, value: &IdedExpr, list: &IdedExpr, depth: u16) -> Result<Typed, String> {
        if let Some(map) = map(list) {
            let key = text_of(value).ok_or("has a name before `in` that is no string")?;
            return Ok((Node::HasField(field(map, key)?), Type::Bool));
        }
        let Expr::List(list) = &list.expr else {
            return Err(
                "has no list, request.headers, request.query or request.cookies behind `in`".to_owned()
            );
        };
        let (value, kind) = self.node(value, depth)?;
        let mut elements = Vec::new();
        for element in &list.elements {
            let (element, of_element) = self.node(element, depth)?;
            if of_element != kind {
                return Err(format!("looks for {} in a list with {}", kind.phrase(), of_element.phrase()));
            }
            elements.push(element);
        }
        Ok((Node::OneOf(Box::new(value), elements), Type::Bool))
    }

    /// Collects the parts of a chain of one operator.
    fn flatten(
        &mut self,
        operator: &str,
        parts: &[IdedExpr],
        depth: u16,
        all: &mut Vec<Node>,
    ) -> Result<(), String> {
        for part in parts {
            match &part.expr {
                Expr::Call(call) if call.func_name == operator && call.target.is_none() => {
                    self.flatten(operator, &call.args, depth, all)?;
                }
                _ => all.push(self.bool(part, depth)?),
            }
        }
        Ok(())
    }

    fn pair(&mut self, left: &IdedExpr, right: &IdedExpr, depth: u16) -> Result<(Typed, Typed), String> {
        Ok((self.node(left, depth)?, self.node(right, depth)?))
    }

    fn bool(&mut self, from: &IdedExpr, depth: u16) -> Result<Node, String> {
        match self.node(from, depth)? {
            (node, Type::Bool) => Ok(node),
            (_, other) => Err(format!("has {} where a bool is needed", other.phrase())),
        }
    }

    fn text(&mut self, from: &IdedExpr, depth: u16) -> Result<Node, String> {
        match self.node(from, depth)? {
            (node, Type::Text) => Ok(node),
            (_, other) => Err(format!("has {} where a string is needed", other.phrase())),
        }
    }
}

/// Reports whether a text has a single `=`.
fn has_single_equals(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_single = |at: usize| {
        let is_sign = |byte: Option<&u8>, signs: &[u8]| byte.is_some_and(|byte| signs.contains(byte));
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        bytes[at] == b'=' && !is_sign(before, b"=!<>") && !is_sign(bytes.get(at + 1), b"=")
    };
    (0..bytes.len()).any(is_single)
}

/// Returns the text of a string literal.
fn text_of(from: &IdedExpr) -> Option<&str> {
    match &from.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns the field `OBJECT.FIELD` of a name.
fn member(from: &IdedExpr) -> Option<(&str, &str)> {
    let Expr::Select(select) = &from.expr else { return None };
    match &select.operand.expr {
        Expr::Ident(object) if !select.test => Some((object, &select.field)),
        _ => None,
    }
}

fn map(from: &IdedExpr) -> Option<Map> {
    match member(from)? {
        ("request", "headers") => Some(Map::Headers),
        ("request", "query") => Some(Map::Query),
        ("request", "cookies") => Some(Map::Cookies),
        _ => None,
    }
}

fn attribute(from: &IdedExpr) -> Option<Attribute> {
    match member(from)? {
        ("request", "method") => Some(Attribute::Method),
        ("request", "host") => Some(Attribute::Host),
        ("request", "path") => Some(Attribute::Path),
        ("source", "address") => Some(Attribute::ClientAddress),
        _ => None,
    }
}

fn field(map: Map, name: &str) -> Result<Field, String> {
    match map {
        Map::Headers => {
            let header = HeaderName::from_bytes(name.as_bytes());
            let header = header.map_err(|_| format!("has {name:?}, which is not the name of a header"))?;
            if header == http::header::HOST {
                return Err("has the header Host: use request.host, which HTTP/2 has too".to_owned());
            }
            Ok(Field::Header(header.as_str().to_owned()))
        }
        Map::Query => Ok(Field::Query(name.to_owned())),
        Map::Cookies => Ok(Field::Cookie(name.to_owned())),
    }
}

fn unknown(from: &IdedExpr) -> String {
    let mut path = Vec::new();
    let mut at = from;
    loop {
        match &at.expr {
            Expr::Select(select) => {
                path.push(select.field.as_str());
                at = &select.operand;
            }
            Expr::Ident(name) => break path.push(name),
            _ => break,
        }
    }
    path.reverse();
    let name: String = path.join(".").chars().take(80).collect();
    if map(from).is_some() {
        return format!("uses {name} as a value: name an entry, as in {name}[\"x\"]");
    }
    format!(
        "has an unknown name {name:?}: there are request.method, request.host, request.path, request.headers, \
         request.query, request.cookies and source.address"
    )
}
