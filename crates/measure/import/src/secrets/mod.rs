//! Moves what a person types and nobody else should read out of a scenario, into a data file.
//!
//! A secret is known by its place (credentials, cookies) or by its name (passwords, keys), and in a body also by its value, if it is known
//! from elsewhere. Values that a server made, such as tokens of forms, are no secrets: the next run needs others anyway.

mod columns;
mod known;
mod names;
mod text_form;

use std::{cmp::Reverse, collections::HashSet};

use self::{
    columns::Columns,
    known::KnownValues,
    names::{ValueRole, has_credentials, is_value},
    text_form::{TextForm, TextValue},
};
use crate::{
    encode::FORM_MEDIA_TYPE,
    import_tree::{
        DataSet, FirstRow, FormPart, FormPartContent, ImportAction, ImportPiece, ImportText, ImportTree, ImportedBody,
        ImportedRequest, ImportedRowPolicy,
    },
    write::is_json_line,
};

/// Schemes that stay readable before their credentials.
const SCHEMES: &[&str] = &["Basic ", "Bearer ", "Token "];

/// Replaces all secrets by columns of a data set, and returns the content of its file; `None` if there are none.
pub(super) fn move_out(tree: &mut ImportTree, file: &str) -> Option<String> {
    let mut columns = Columns::new(names_of(tree));
    for kind in &mut tree.kinds {
        each_request(&mut kind.acts, &mut |request| columns.replace_in(request));
    }
    let known = KnownValues::of(&columns.columns);
    for kind in &mut tree.kinds {
        each_request(&mut kind.acts, &mut |request| columns.replace_in_text(request, &known));
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

impl Columns {
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
            // Its values become columns here, and are replaced once those of all requests are known.
            ImportedBody::Text(_) => {
                let Some((text, form)) = text_body(request) else { return };
                for (name, _, value) in in_order(form.named(text)) {
                    self.of(name, &value.plain);
                }
            }
            ImportedBody::None | ImportedBody::Bytes(_) | ImportedBody::File(_) => {}
        }
    }

    /// Replaces the secrets in a body that is text: those that have names there, and those that are known.
    fn replace_in_text(&mut self, request: &mut ImportedRequest, known: &KnownValues) {
        let Some((text, form)) = text_body(request) else { return };
        let mut values = form.named(text);
        values.extend(known.find(text, form));
        let replaced = self.without(text, in_order(values));
        request.body = ImportedBody::Text(replaced);
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
        let is_secret = |name: &str| ValueRole::of(name) == Some(ValueRole::Secret);
        let has_secret = fields.iter().any(|(name, value)| is_secret(name) && value.as_literal().is_some_and(is_value));
        for (name, value) in fields {
            if is_secret(&name) || (has_secret && ValueRole::of(&name).is_some()) {
                self.replace(&name, value);
            }
        }
    }

    fn replace_in_query(&mut self, url: &mut ImportText) {
        let Some((path, query)) = url.as_literal().and_then(|url| url.split_once('?')) else { return };
        let mut replaced = ImportText::literal(format!("{path}?"));
        replaced.append(self.without(query, in_order(TextForm::Pairs.named(query))));
        *url = replaced;
    }

    /// A text with holes in place of these values.
    fn without(&mut self, text: &str, values: Vec<FoundValue<'_>>) -> ImportText {
        let mut replaced = ImportText::default();
        let mut rest = 0;
        for (name, _, TextValue { plain, range, coding }) in values {
            replaced.push_str(&text[rest..range.start]);
            let hole = self.of(name, &plain);
            replaced.push(match coding {
                Some(coding) => ImportPiece::Coded(Box::new(hole), coding),
                None => hole,
            });
            rest = range.end;
        }
        replaced.push_str(&text[rest..]);
        replaced
    }
}

/// A value in a text with its name, and what it is to its user.
type FoundValue<'t> = (&'t str, ValueRole, TextValue);

/// The secrets with the persons next to them, in the order of the text; of two that overlap, the first and longer one.
fn in_order(mut values: Vec<FoundValue<'_>>) -> Vec<FoundValue<'_>> {
    if values.iter().all(|(_, role, _)| *role == ValueRole::Person) {
        return Vec::new();
    }
    values.sort_by_key(|(_, _, value)| (value.range.start, Reverse(value.range.end)));
    let mut end = 0;
    values.retain(|(_, _, value)| {
        let is_behind = value.range.start >= end;
        end = if is_behind { value.range.end } else { end };
        is_behind
    });
    values
}

/// A body that is text as a whole, and its form.
fn text_body(request: &ImportedRequest) -> Option<(&str, TextForm)> {
    let ImportedBody::Text(text) = &request.body else { return None };
    let literal = text.as_literal()?;
    let form = match TextForm::of(literal) {
        TextForm::Json if is_json_line(request, text) => TextForm::JsonLine,
        // It is coded in another way than forms are here, so it is no list of fields.
        TextForm::Other if is_form(&request.headers) => TextForm::Pairs,
        form => form,
    };
    Some((literal, form))
}

/// Whether the fields say that the body is a form.
fn is_form(headers: &[(String, ImportText)]) -> bool {
    let media = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    media.and_then(|(_, value)| value.as_literal()).is_some_and(|media| media.starts_with(FORM_MEDIA_TYPE))
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

    /// The bodies after the secrets were moved out, each with the media type before, and the file.
    fn moved_from_bodies(bodies: &[(&str, &str)]) -> (Vec<String>, String) {
        let request = |(media, body): &(&str, &str)| ImportedRequest {
            headers: vec![("Content-Type".to_owned(), (*media).into())],
            body: ImportedBody::Text((*body).into()),
            ..ImportedRequest::default()
        };
        let (requests, file) = moved(bodies.iter().map(request).collect());
        let shown = |piece: &ImportPiece| match piece {
            ImportPiece::Coded(piece, coding) => format!("{piece}:{coding:?}"),
            piece => piece.to_string(),
        };
        let written = |request: &ImportedRequest| match &request.body {
            ImportedBody::Text(text) => text.0.iter().map(shown).collect(),
            body => panic!("{body:?}"),
        };
        (requests.iter().map(written).collect(), file.unwrap_or_default())
    }

    #[test]
    fn elements_and_attributes_of_xml_with_telling_names_become_columns() {
        let (bodies, file) = moved_from_bodies(&[
            (
                "text/xml",
                r#"<s:Login id="1"><s:user>ann</s:user><s:password type="text"> a&amp;b </s:password><auth api_key='k1'/></s:Login>"#,
            ),
            ("text/xml", "<a><pwd><![CDATA[x<y]]></pwd><note>password</note></a>"),
            ("text/xml", "<search><user>bob</user></search>"),
        ]);
        let login = "<s:Login id=\"1\"><s:user>${user}:Html</s:user><s:password type=\"text\"> ${password}:Html \
                     </s:password><auth api_key='${api_key}:Html'/></s:Login>";
        let data = "<a><pwd><![CDATA[${pwd}]]></pwd><note>password</note></a>";
        assert_eq!(bodies, [login, data, "<search><user>bob</user></search>"]);
        assert_eq!(file, "user,password,api_key,pwd\nann,a&b,k1,x<y\n");
    }

    #[test]
    fn names_in_any_other_text_become_columns() {
        let (bodies, file) = moved_from_bodies(&[
            ("text/plain", "command: login\nuser = ann; password: hush\nnote=x"),
            ("", "no words"),
        ]);
        assert_eq!(bodies, ["command: login\nuser = ${user}; password: ${password}\nnote=x", "no words"]);
        assert_eq!(file, "user,password\nann,hush\n");
    }

    #[test]
    fn known_secrets_are_found_in_bodies_whatever_their_name_there() {
        let (bodies, file) = moved_from_bodies(&[
            ("text/plain", "AUTH anna hush\"&1 now, hush\"&12 later"),
            ("text/plain;charset=UTF-8", r#"{"hello": "hush\"&1", "anna": "anna"}"#),
            ("application/json", r#"["hush\"&1"]"#),
            ("application/xml", r#"<x><anna>hush&quot;&amp;1</anna><![CDATA[hush"&1]]><b c="anna"/></x>"#),
            ("application/x-www-form-urlencoded", "q=hush%22%261"),
            ("text/plain", "anna alone stays"),
            ("application/json", r#"{"login": "anna", "password": "hush\"&1"}"#),
        ]);
        let found = [
            "AUTH ${login} ${password} now, hush\"&12 later",
            r#"{"hello": "${password}:Json", "anna": "${login}:Json"}"#,
            r#"["${password}"]"#,
            r#"<x><anna>${password}:Html</anna><![CDATA[${password}]]><b c="${login}:Html"/></x>"#,
            "q=${password}:Form",
            "anna alone stays",
            r#"{"login": "${login}", "password": "${password}"}"#,
        ];
        assert_eq!(bodies, found);
        assert_eq!(file, "login,password\nanna,\"hush\"\"&1\"\n");
    }

    #[test]
    fn cookies_and_credentials_are_found_in_bodies_and_short_values_and_names_are_not() {
        let request = ImportedRequest {
            headers: [("Authorization", "Bearer t0ken"), ("Cookie", "sid=s3ssion; a=1"), ("X-Api-Key", "k1")]
                .map(|(name, value)| (name.to_owned(), value.into()))
                .into(),
            body: ImportedBody::Text("t0ken s3ssion 1 k1".into()),
            ..ImportedRequest::default()
        };
        let (requests, file) = moved(vec![request, fields(&[("password", "password")])]);
        let ImportedBody::Text(text) = &requests[0].body else { panic!("it is text") };
        assert_eq!(text.to_string(), "${authorization} ${sid} 1 k1");
        let columns = "authorization,cookie,x_api_key,password,sid\nt0ken,\"sid=s3ssion; a=1\",k1,password,s3ssion\n";
        assert_eq!(file.unwrap(), columns);
    }

    #[test]
    fn a_key_in_a_query_is_encoded_again() {
        let request = ImportedRequest { url: "http://a.test/x?api_key=a%26b&q=1".into(), ..ImportedRequest::default() };
        let (requests, file) = moved(vec![request]);
        assert!(matches!(&requests[0].url.0[1], ImportPiece::Coded(..)), "{:?}", requests[0].url);
        assert_eq!(file.unwrap(), "api_key\na&b\n");
    }
}
