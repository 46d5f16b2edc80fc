//! Copies values from one state to another, because states share nothing.

use mlua::{Lua, Value};

/// The deepest nesting of tables; a table that contains itself never ends.
const DEPTH_MAX: usize = 64;

/// A copy of a value for another state, or the error, in wrk's words.
pub(super) fn copy(value: &Value, to: &Lua) -> Result<Value, String> {
    copy_within(value, to, DEPTH_MAX)
}

fn copy_within(value: &Value, to: &Lua, depth: usize) -> Result<Value, String> {
    let failed = |error: mlua::Error| error.to_string();
    Ok(match value {
        Value::Nil => Value::Nil,
        Value::Boolean(truth) => Value::Boolean(*truth),
        Value::Integer(number) => Value::Integer(*number),
        Value::Number(number) => Value::Number(*number),
        Value::String(text) => Value::String(to.create_string(text.as_bytes()).map_err(failed)?),
        Value::Table(_) if depth == 0 => return Err("cannot transfer a table that contains itself".to_owned()),
        Value::Table(table) => {
            let copied = to.create_table().map_err(failed)?;
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair.map_err(failed)?;
                let key = copy_within(&key, to, depth - 1)?;
                copied.raw_set(key, copy_within(&value, to, depth - 1)?).map_err(failed)?;
            }
            Value::Table(copied)
        }
        other => return Err(format!("cannot transfer '{}' to thread", other.type_name())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(expression: &str) -> Result<(Lua, Value), String> {
        let (from, to) = (fathom_sys::process::lua::state(), fathom_sys::process::lua::state());
        let value: Value = from.load(expression).eval().unwrap();
        copy(&value, &to).map(|value| (to, value))
    }

    #[test]
    fn data_is_copied_with_tables_in_tables() {
        let (to, value) = copied(r#"{1, "two", {three = {true, 4.5}}, [false] = "no", s = "\0\255"}"#).unwrap();
        to.globals().set("v", value).unwrap();
        let holds = r#"v[1] == 1 and v[2] == "two" and v[3].three[1] == true and v[3].three[2] == 4.5
            and v[false] == "no" and v.s == "\0\255" and #v == 3"#;
        assert!(to.load(holds).eval::<bool>().unwrap());
        assert_eq!(copied("nil").unwrap().1, Value::Nil);
    }

    #[test]
    fn what_is_no_data_is_refused_in_wrk_s_words() {
        let cases = [
            ("print", "cannot transfer 'function' to thread"),
            ("{a = {coroutine.create(print)}}", "cannot transfer 'thread' to thread"),
            ("newproxy()", "cannot transfer 'userdata' to thread"),
            ("(function() local t = {} t.t = t return t end)()", "cannot transfer a table that contains itself"),
        ];
        for (expression, said) in cases {
            assert_eq!(copied(expression).unwrap_err(), said, "{expression}");
        }
    }
}
