//! Calls, and the values that they are given and give back.

use super::super::{Call, Value};
use super::{Cursor, Result};

impl Cursor<'_> {
    pub(super) fn call(&mut self) -> Result<Call> {
        let name = self.word()?;
        self.expect("(")?;
        let arguments = self.values(")")?;
        self.expect("=")?;
        let result = if self.eat("...") { None } else { Some(self.number()?) };
        let mut errno = None;
        if self.look_word().starts_with('E') {
            errno = Some(self.word()?);
            if self.eat("(") {
                while !self.at_end() && self.bump() != b')' {}
            }
        }
        Ok(Call { name, arguments, result, errno })
    }

    fn values(&mut self, close: &str) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        while !self.eat(close) {
            if !values.is_empty() {
                self.expect(",")?;
            }
            values.push(self.value()?);
        }
        Ok(values)
    }

    fn value(&mut self) -> Result<Value> {
        self.skip_blank();
        Ok(match self.peek() {
            b'.' => {
                self.expect("...")?;
                Value::Any
            }
            b'"' => {
                self.bump();
                let start = self.at;
                while !self.at_end() && self.peek() != b'"' {
                    self.bump();
                }
                let text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
                self.expect("\"")?;
                Value::Text(text)
            }
            b'[' => {
                self.bump();
                Value::List(self.values("]")?)
            }
            b'{' => {
                self.bump();
                let mut fields = Vec::new();
                while !self.eat("}") {
                    if !fields.is_empty() {
                        self.expect(",")?;
                    }
                    fields.push(self.field()?);
                }
                Value::Structure(fields)
            }
            b'-' | b'0'..=b'9' => Value::Number(self.number()?),
            _ => {
                let name = self.word()?;
                if self.eat("(") {
                    return Ok(Value::Apply(name, self.values(")")?));
                }
                let mut names = vec![name];
                while self.eat("|") {
                    names.push(self.word()?);
                }
                Value::Names(names)
            }
        })
    }

    /// `value`, `name=value`, or packetdrill's `name(count)=value`.
    fn field(&mut self) -> Result<(Option<String>, Value)> {
        let value = self.value()?;
        if !self.eat("=") {
            return Ok((None, value));
        }
        match value {
            Value::Names(names) if names.len() == 1 => Ok((Some(names[0].clone()), self.value()?)),
            Value::Apply(name, _) => Ok((Some(name), self.value()?)),
            _ => Err(self.error("a name before `=`")),
        }
    }
}
