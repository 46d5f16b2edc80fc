//! Moves what a person types and nobody else should read out of a scenario, into a data file.
//!
//! A secret is known by its place (credentials, cookies) or by its name (passwords, keys). Values that a server made, such as
//! tokens of forms, are no secrets: the next run needs others anyway.

use std::{collections::HashSet, fmt::Write as _, sync::LazyLock};

use regex::Regex;

use crate::{
    encode::{FORM_MEDIA_TYPE, form, unform},
    import_tree::{
        DataSet, FirstRow, FormPart, FormPartContent, ImportAction, ImportPiece, ImportText, ImportTree, ImportedBody,
        ImportedRequest, ImportedRowPolicy, TextCoding,
    },
};

/// Fields of a request with credentials.
const CREDENTIALS: &[&str] =
    &["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"];
/// Schemes that stay readable before their credentials.
const SCHEMES: &[&str] = &["Basic ", "Bearer ", "Token "];
/// The names of what only one person knows.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?i)pass(?:word|wd|phrase|code)|(?:^|[\W_])(?:pass|pwd|pin|otp)\]?$|secret|api[_-]?key")
});
/// The names of what tells the person, next to a secret.
static PERSON: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)(?:^|[\W_])(?:user|user_?name|login|e-?mail|email_?address|account)\]?$"));
/// A choice between such values is no secret, whatever its name.
const SWITCHES: &[&str] = &["true", "false", "on", "off", "yes", "no", "0", "1"];
/// The members of JSON that are strings or numbers.
static MEMBER: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r#""(?P<name>(?:[^"\\]|\\.)*)"\s*:\s*(?:"(?P<value>(?:[^"\\]|\\.)+)"|(?P<number>-?[0-9][0-9.eE+-]*))"#)
});
/// The names of header fields with keys and tokens of one user; those of forms are made by servers.
static KEY_FIELD: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)(?:^|[_-])token$|api[_-]?key|subscription-key|secret"));
static FORM_TOKEN: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)csrf|xsrf"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the patterns are constant, and tested")
}

/// Replaces all secrets by columns of a data set, and returns the content of its file; `None` if there are none.
pub(super) fn move_out(tree: &mut ImportTree, file: &str) -> Option<String> {
    let mut columns = Columns { columns: Vec::new(), taken: names_of(tree) };
    for kind in &mut tree.kinds {
        each_request(&mut kind.acts, &mut |request| columns.replace_in(request));
    }
    if columns.columns.is_empty() {
        return None;
    }
    tree.data.push(DataSet {
        name: "secrets".to_owned(),
        file: file.to_owned(),
        columns: Some(columns.columns.iter().map(|column| column.name.clone()).collect()),
        // The first row of the file has the names as well.
        first_row: FirstRow::Names,
        delimiter: ',',
        policy: ImportedRowPolicy::Sequential,
    });
    Some(columns.file())
}

/// The variables that there are without the secrets.
fn names_of(tree: &ImportTree) -> HashSet<String> {
    let mut names: HashSet<String> = tree.variables.iter().map(|(name, _)| name.clone()).collect();
    names.extend(tree.data.iter().flat_map(|set| set.columns.iter().flatten().cloned()));
    for request in tree.requests() {
        names.extend(request.takes.iter().map(|take| take.name.clone()));
        names.extend(request.variables());
    }
    tree.each_act(&mut |act| {
        if let ImportAction::Set { name, .. } = act {
            names.insert(name.clone());
        }
    });
    names
}

fn each_request(acts: &mut [ImportAction], visit: &mut dyn FnMut(&mut ImportedRequest)) {
    for act in acts {
        match act {
            ImportAction::Request(request) => visit(request),
            ImportAction::Transaction { acts, .. }
            | ImportAction::Repeat { acts, .. }
            | ImportAction::If { acts, .. }
            | ImportAction::While { acts, .. }
            | ImportAction::Once(acts)
            | ImportAction::Share { acts, .. } => each_request(acts, visit),
            ImportAction::OneOf(branches) => branches.iter_mut().for_each(|acts| each_request(acts, visit)),
            ImportAction::Think(_) | ImportAction::Meet(_) | ImportAction::Set { .. } | ImportAction::LeftOut(_) => {}
        }
    }
}

/// A secret of the recording.
struct Column {
    name: String,
    value: String,
}

struct Columns {
    columns: Vec<Column>,
    /// Names of other variables.
    taken: HashSet<String>,
}

impl Columns {
    /// The column of a value: one for all places that have it.
    fn of(&mut self, name: &str, value: &str) -> ImportPiece {
        if let Some(known) = self.columns.iter().find(|column| column.value == value) {
            return ImportPiece::Variable(known.name.clone());
        }
        let word = name.to_lowercase().replace(|char: char| !char.is_alphanumeric(), "_");
        let word = word.trim_matches('_');
        let base = if word.is_empty() { "secret" } else { word };
        let is_free =
            |name: &String| !self.taken.contains(name) && self.columns.iter().all(|column| column.name != *name);
        let mut names = std::iter::once(base.to_owned()).chain((2..).map(|n| format!("{base}_{n}")));
        let name = names.find(is_free).expect("the numbers have no end");
        self.columns.push(Column { name: name.clone(), value: value.to_owned() });
        ImportPiece::Variable(name)
    }

    fn replace(&mut self, name: &str, text: &mut ImportText) {
        if let Some(value) = text.as_literal().filter(|value| is_value(value)) {
            *text = ImportText(vec![self.of(name, value)]);
        }
    }

    fn replace_in(&mut self, request: &mut ImportedRequest) {
        for (name, value) in &mut request.headers {
            if has_credentials(name) {
                self.replace_credentials(name, value);
            } else if name.eq_ignore_ascii_case("referer") {
                self.replace_in_query(value);
            }
        }
        self.replace_in_query(&mut request.url);
        match &mut request.body {
            ImportedBody::Form(fields) => {
                let fields = fields.iter_mut().filter_map(|(name, value)| Some((name.as_literal()?.to_owned(), value)));
                self.replace_fields(fields.collect());
            }
            ImportedBody::Multipart(parts) => {
                let fields = parts.iter_mut().filter_map(|FormPart { name, content, .. }| match content {
                    FormPartContent::Text(value) => Some((name.as_literal()?.to_owned(), value)),
                    FormPartContent::File(_) => None,
                });
                self.replace_fields(fields.collect());
            }
            ImportedBody::Text(text) => {
                let Some(literal) = text.as_literal() else { return };
                if literal.trim_start().starts_with(['{', '[']) {
                    *text = self.without_members(literal);
                } else if is_form(&request.headers) {
                    // It is coded in another way than forms are here, so it is no list of fields.
                    *text = self.without_pairs("", literal);
                }
            }
            ImportedBody::None | ImportedBody::Bytes(_) | ImportedBody::File(_) => {}
        }
    }

    fn replace_credentials(&mut self, name: &str, value: &mut ImportText) {
        let Some(literal) = value.as_literal() else { return };
        let scheme = SCHEMES
            .iter()
            .find(|scheme| literal.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme)));
        let (scheme, credentials) = literal.split_at(scheme.map_or(0, |scheme| scheme.len()));
        if credentials.is_empty() {
            return;
        }
        let column = self.of(name, credentials);
        let mut replaced = ImportText::literal(scheme);
        replaced.push(column);
        *value = replaced;
    }

    /// The fields of one form: the secrets, and the person they belong to.
    fn replace_fields(&mut self, fields: Vec<(String, &mut ImportText)>) {
        let has_secret =
            fields.iter().any(|(name, value)| SECRET.is_match(name) && value.as_literal().is_some_and(is_value));
        for (name, value) in fields {
            if SECRET.is_match(&name) || (has_secret && PERSON.is_match(&name)) {
                self.replace(&name, value);
            }
        }
    }

    fn replace_in_query(&mut self, url: &mut ImportText) {
        let Some((path, query)) = url.as_literal().and_then(|url| url.split_once('?')) else { return };
        *url = self.without_pairs(&format!("{path}?"), query);
    }

    /// A text that ends with pairs of names and values as in forms, with a hole for each secret and for the person it belongs to.
    fn without_pairs(&mut self, begin: &str, pairs: &str) -> ImportText {
        let is_secret = |name: &str, value: &str| SECRET.is_match(name) && is_value(value);
        let split = || pairs.split('&').map(|pair| (pair, pair.split_once('=')));
        let has_secret = split().any(|(_, parts)| parts.is_some_and(|(name, value)| is_secret(name, value)));
        let mut replaced = ImportText::literal(begin);
        for (idx, (pair, parts)) in split().enumerate() {
            replaced.push_str(if idx == 0 { "" } else { "&" });
            let is_taken = |name: &str, value: &str| {
                is_secret(name, value) || (has_secret && PERSON.is_match(name) && is_value(value))
            };
            let Some((name, value)) = parts.filter(|(name, value)| is_taken(name, value)) else {
                replaced.push_str(pair);
                continue;
            };
            let plain = unform(ImportText::literal(value));
            replaced.push_str(&format!("{name}="));
            match plain.as_literal().filter(|_| form(plain.clone()).to_string() == value) {
                Some(plain) => replaced.push(ImportPiece::Coded(Box::new(self.of(name, plain)), TextCoding::Form)),
                // Encoded in another way, it is sent as it is.
                None => replaced.push(self.of(name, value)),
            }
        }
        replaced
    }

    /// JSON whose secrets are holes; a hole in a string is encoded when it is filled.
    fn without_members(&mut self, json: &str) -> ImportText {
        let members: Vec<_> = MEMBER.captures_iter(json).collect();
        let of = |member: &regex::Captures<'_>| -> Option<(String, std::ops::Range<usize>)> {
            if let Some(number) = member.name("number") {
                return Some((number.as_str().to_owned(), number.range()));
            }
            let value = member.name("value")?;
            Some((serde_json::from_str(&format!("\"{}\"", value.as_str())).ok()?, value.range()))
        };
        let has_secret = members
            .iter()
            .any(|member| SECRET.is_match(&member["name"]) && of(member).is_some_and(|(plain, _)| is_value(&plain)));
        let mut replaced = ImportText::default();
        let mut rest = 0;
        for member in &members {
            let name = &member["name"];
            let is_secret = SECRET.is_match(name) || (has_secret && PERSON.is_match(name));
            if let Some((plain, range)) = of(member).filter(|(plain, _)| is_secret && is_value(plain)) {
                replaced.push_str(&json[rest..range.start]);
                replaced.push(self.of(name, &plain));
                rest = range.end;
            }
        }
        replaced.push_str(&json[rest..]);
        replaced
    }

    /// A row of names and a row of values.
    fn file(&self) -> String {
        let mut text = String::new();
        for of in [(|column| &column.name) as fn(&Column) -> &String, |column| &column.value] {
            let cells: Vec<String> = self.columns.iter().map(|column| cell(of(column))).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

/// Whether a header field has credentials, keys or tokens of one user.
fn has_credentials(name: &str) -> bool {
    let is_key = KEY_FIELD.is_match(name) && !FORM_TOKEN.is_match(name);
    CREDENTIALS.contains(&name.to_lowercase().as_str()) || is_key
}

/// Whether the fields say that the body is a form.
fn is_form(headers: &[(String, ImportText)]) -> bool {
    let media = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    media.and_then(|(_, value)| value.as_literal()).is_some_and(|media| media.starts_with(FORM_MEDIA_TYPE))
}

fn is_value(text: &str) -> bool {
    !text.is_empty() && !SWITCHES.contains(&text.to_lowercase().as_str())
}

/// A value as CSV has it (RFC 4180).
fn cell(value: &str) -> String {
    let is_plain = !value.contains([',', '"', '\n', '\r', ' ', '\t']);
    if is_plain { value.to_owned() } else { format!("\"{}\"", value.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import_tree::ImportedUser;

    fn moved(requests: Vec<ImportedRequest>) -> (Vec<ImportedRequest>, Option<String>) {
        let acts = requests.into_iter().map(|request| ImportAction::Request(Box::new(request))).collect();
        let mut tree =
            ImportTree { kinds: vec![ImportedUser { acts, ..ImportedUser::default() }], ..ImportTree::default() };
        let file = move_out(&mut tree, "secrets.csv");
        (tree.requests().into_iter().cloned().collect(), file)
    }

    fn fields(fields: &[(&str, &str)]) -> ImportedRequest {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        ImportedRequest { body: ImportedBody::Form(fields), ..ImportedRequest::default() }
    }

    #[test]
    fn a_password_and_its_user_become_columns_and_nothing_else_of_the_form_does() {
        let login = fields(&[
            ("user[email]", "ann@a.test"),
            ("user[password]", "hu, \"sh"),
            ("csrf_token", "t1"),
            ("compass", "n"),
        ]);
        let change = fields(&[("old_password", "hu, \"sh"), ("email", "other")]);
        let (requests, file) = moved(vec![login, change]);
        let ImportedBody::Form(sent) = &requests[0].body else { panic!("it is a form") };
        let values: Vec<String> = sent.iter().map(|(_, value)| value.to_string()).collect();
        assert_eq!(values, ["${user_email}", "${user_password}", "t1", "n"]);
        let ImportedBody::Form(sent) = &requests[1].body else { panic!("it is a form") };
        assert_eq!(sent[0].1.to_string(), "${user_password}", "the same value is the same column");
        assert_eq!(file.unwrap(), "user_email,user_password,email\nann@a.test,\"hu, \"\"sh\",other\n");
    }

    #[test]
    fn a_form_that_is_coded_in_another_way_and_numbers_keep_no_secret() {
        let of = |media: &str, body: &str| ImportedRequest {
            headers: vec![("Content-Type".to_owned(), media.into())],
            body: ImportedBody::Text(body.into()),
            ..ImportedRequest::default()
        };
        let (requests, file) = moved(vec![
            of("application/x-www-form-urlencoded; charset=UTF-8", "user=ann&password=hush!&next=/a"),
            of("application/json", r#"{"otp": 123456, "n": 7}"#),
        ]);
        let bodies: Vec<String> = requests
            .iter()
            .map(|request| match &request.body {
                ImportedBody::Text(text) => text.to_string(),
                body => panic!("{body:?}"),
            })
            .collect();
        assert_eq!(bodies, ["user=${user}&password=${password}&next=/a", r#"{"otp": ${otp}, "n": 7}"#]);
        assert_eq!(file.unwrap(), "user,password,otp\nann,hush!,123456\n");
    }

    #[test]
    fn keys_in_fields_and_in_the_page_before_are_no_part_of_the_scenario() {
        let headers =
            ["X-Goog-Api-Key", "Private-Token", "X-CSRF-Token", "X-Trace"].map(|name| (name.to_owned(), "v1".into()));
        let referer = ("Referer".to_owned(), "http://a.test/?api_key=k2&x=1".into());
        let request =
            ImportedRequest { headers: headers.into_iter().chain([referer]).collect(), ..ImportedRequest::default() };
        let (requests, _) = moved(vec![request]);
        let values: Vec<String> = requests[0].headers.iter().map(|(_, value)| value.to_string()).collect();
        assert_eq!(values[2..], ["v1", "v1", "http://a.test/?api_key=${api_key}&x=1"]);
        assert!(values[..2].iter().all(|value| value.starts_with("${")), "{values:?}");
    }

    #[test]
    fn a_variable_of_the_same_name_stays_another_one() {
        let mut login = fields(&[("password", "hush")]);
        login.url =
            ImportText(vec![ImportPiece::Literal("http://a.test/".into()), ImportPiece::Variable("password".into())]);
        let (requests, file) = moved(vec![login]);
        let ImportedBody::Form(sent) = &requests[0].body else { panic!("it is a form") };
        assert_eq!(sent[0].1.to_string(), "${password_2}");
        assert_eq!(file.unwrap(), "password_2\nhush\n");
    }

    #[test]
    fn a_search_for_a_user_is_no_secret() {
        assert_eq!(moved(vec![fields(&[("user", "ann"), ("pin_board", "x"), ("use_password", "true")])]).1, None);
    }

    #[test]
    fn credentials_keep_their_scheme() {
        let request = ImportedRequest {
            headers: vec![
                ("Authorization".to_owned(), "Bearer abc".into()),
                ("X-Api-Key".to_owned(), "k1".into()),
                ("Accept".to_owned(), "*/*".into()),
            ],
            ..ImportedRequest::default()
        };
        let (requests, file) = moved(vec![request]);
        let values: Vec<String> = requests[0].headers.iter().map(|(_, value)| value.to_string()).collect();
        assert_eq!(values, ["Bearer ${authorization}", "${x_api_key}", "*/*"]);
        assert_eq!(file.unwrap(), "authorization,x_api_key\nabc,k1\n");
    }

    #[test]
    fn strings_of_json_are_found_with_their_escapes() {
        let json = r#"{"login": "ann", "password":"a\"bé", "age": 7, "note": "x"}"#;
        let request = ImportedRequest { body: ImportedBody::Text(json.into()), ..ImportedRequest::default() };
        let (requests, file) = moved(vec![request]);
        let ImportedBody::Text(text) = &requests[0].body else { panic!("it is text") };
        assert_eq!(text.to_string(), r#"{"login": "${login}", "password":"${password}", "age": 7, "note": "x"}"#);
        assert_eq!(file.unwrap(), "login,password\nann,\"a\"\"bé\"\n");
    }

    #[test]
    fn a_key_in_a_query_is_encoded_again() {
        let request = ImportedRequest { url: "http://a.test/x?api_key=a%26b&q=1".into(), ..ImportedRequest::default() };
        let (requests, file) = moved(vec![request]);
        assert!(matches!(&requests[0].url.0[1], ImportPiece::Coded(..)), "{:?}", requests[0].url);
        assert_eq!(file.unwrap(), "api_key\na&b\n");
    }
}
