//! Texts that need care in a scenario.

use super::*;
use crate::import_tree::{ImportAction, ImportPiece, ImportedBody};
use fathom_scenario::ast::{BodyContent, Statement, StepDef};

fn step(request: ImportedRequest) -> StepDef {
    let acts = vec![ImportAction::Request(Box::new(request))];
    let variables = vec![("v".to_owned(), ImportText::literal("1"))];
    let builder = ImportTree {
        kinds: vec![ImportedUser { acts, ..ImportedUser::default() }],
        variables,
        ..ImportTree::default()
    };
    let text = write(&builder, "x").unwrap().text;
    let read = scenario::parse(&text).unwrap();
    match &read.users[0].body[..] {
        [Statement::Step(step)] => (**step).clone(),
        other => panic!("{other:?}"),
    }
}

fn request(body: ImportedBody) -> ImportedRequest {
    ImportedRequest { method: "POST".to_owned(), url: "http://a.test/".into(), body, ..ImportedRequest::default() }
}

#[test]
fn texts_are_read_again_as_they_were() {
    for text in [
        "a",
        " a ",
        "a\nb",
        "a\n\nb",
        "a\n  b\n c",
        "\ta\t",
        "a\r\nb\r\n",
        "# no comment",
        "from file",
        "from",
        "${x}",
        "$${x}",
        "$$$",
        "$",
        "\"",
        "\\n",
        "{",
        "a # b",
        "a\n# b",
        " \n ",
        "\u{a0}a\u{a0}",
        "ä\u{2028}ö",
    ] {
        let Some(body) = step(request(ImportedBody::Text(text.into()))).body else { panic!("{text:?}") };
        let BodyContent::Text(read) = body.content else { panic!("{text:?}") };
        assert_eq!(read.fixed(), Some(text), "{text:?}");
    }
}

#[test]
fn a_dollar_before_a_hole_stays_a_dollar() {
    let text = ImportText(vec![
        ImportPiece::Literal("a$".into()),
        ImportPiece::Variable("v".into()),
        ImportPiece::Literal("$".into()),
    ]);
    let Some(body) = step(request(ImportedBody::Text(text))).body else { panic!("it has a body") };
    let BodyContent::Text(read) = body.content else { panic!("{body:?}") };
    assert_eq!((read.pieces.len(), read.holes().count()), (3, 1));
}

#[test]
fn json_and_forms_are_written_as_such() {
    let with = |media: &str, text: &str| {
        let mut request = request(ImportedBody::Text(text.into()));
        request.headers.push(("Content-Type".to_owned(), media.into()));
        step(request)
    };
    let json = with("application/json", "{\"a\": [1, 2]}");
    assert!(matches!(json.body.unwrap().content, BodyContent::Json(_)) && json.headers.is_empty());
    let form = with("application/x-www-form-urlencoded", "a=1&b=x-y");
    assert!(
        matches!(form.body.unwrap().content, BodyContent::Form(fields) if fields.len() == 2) && form.headers.is_empty()
    );
    // A form would encode it differently.
    let other = with("application/x-www-form-urlencoded", "a=x y");
    assert!(matches!(other.body.unwrap().content, BodyContent::Text(_)) && other.headers.len() == 1);
    let broken = with("application/json", "{");
    assert!(matches!(broken.body.unwrap().content, BodyContent::Text(_)));
}

#[test]
fn a_host_that_is_a_variable_is_filled_in_and_another_one_is_told() {
    let url = |name: &str| {
        ImportText(vec![
            ImportPiece::Literal("http://".into()),
            ImportPiece::Variable(name.into()),
            ImportPiece::Literal("/x".into()),
        ])
    };
    let asked =
        |name: &str| ImportAction::Request(Box::new(ImportedRequest { url: url(name), ..request(ImportedBody::None) }));
    let variables = vec![("host".to_owned(), ImportText::literal("a.test:81"))];
    let kinds = vec![ImportedUser { acts: vec![asked("host"), asked("other")], ..ImportedUser::default() }];
    let imported = write(&ImportTree { variables, kinds, ..ImportTree::default() }, "x").unwrap();
    assert!(imported.text.contains("\nbase http://a.test:81\n"), "{}", imported.text);
    assert!(!imported.text.contains("let host"), "nobody else uses it: {}", imported.text);
    assert_eq!(imported.notes.len(), 1, "{:?}", imported.notes);
}
