//! Texts that need care in a scenario.

use super::*;
use crate::{
    import::story::{Act, Body, Piece},
    scenario::tree::{Content, Statement, Step},
};

fn step(request: Request) -> Step {
    let acts = vec![Act::Request(Box::new(request))];
    let variables = vec![("v".to_owned(), Text::literal("1"))];
    let story = Story { kinds: vec![UserKind { acts, ..UserKind::default() }], variables, ..Story::default() };
    let text = write(&story, "x").unwrap().text;
    let read = scenario::parse(&text).unwrap();
    match &read.users[0].body[..] {
        [Statement::Step(step)] => (**step).clone(),
        other => panic!("{other:?}"),
    }
}

fn request(body: Body) -> Request {
    Request { method: "POST".to_owned(), url: "http://a.test/".into(), body, ..Request::default() }
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
        let Some(body) = step(request(Body::Text(text.into()))).body else { panic!("{text:?}") };
        let Content::Text(read) = body.content else { panic!("{text:?}") };
        assert_eq!(read.fixed(), Some(text), "{text:?}");
    }
}

#[test]
fn a_dollar_before_a_hole_stays_a_dollar() {
    let text = Text(vec![Piece::Literal("a$".into()), Piece::Variable("v".into()), Piece::Literal("$".into())]);
    let Some(body) = step(request(Body::Text(text))).body else { panic!("it has a body") };
    let Content::Text(read) = body.content else { panic!("{body:?}") };
    assert_eq!((read.pieces.len(), read.holes().count()), (3, 1));
}

#[test]
fn json_and_forms_are_written_as_such() {
    let with = |media: &str, text: &str| {
        let mut request = request(Body::Text(text.into()));
        request.headers.push(("Content-Type".to_owned(), media.into()));
        step(request)
    };
    let json = with("application/json", "{\"a\": [1, 2]}");
    assert!(matches!(json.body.unwrap().content, Content::Json(_)) && json.headers.is_empty());
    let form = with("application/x-www-form-urlencoded", "a=1&b=x-y");
    assert!(
        matches!(form.body.unwrap().content, Content::Form(fields) if fields.len() == 2) && form.headers.is_empty()
    );
    // A form would encode it another way.
    let other = with("application/x-www-form-urlencoded", "a=x y");
    assert!(matches!(other.body.unwrap().content, Content::Text(_)) && other.headers.len() == 1);
    let broken = with("application/json", "{");
    assert!(matches!(broken.body.unwrap().content, Content::Text(_)));
}

#[test]
fn a_host_that_is_a_variable_is_filled_in_and_another_one_is_told() {
    let url = |name: &str| {
        Text(vec![Piece::Literal("http://".into()), Piece::Variable(name.into()), Piece::Literal("/x".into())])
    };
    let asked = |name: &str| Act::Request(Box::new(Request { url: url(name), ..request(Body::None) }));
    let variables = vec![("host".to_owned(), Text::literal("a.test:81"))];
    let kinds = vec![UserKind { acts: vec![asked("host"), asked("other")], ..UserKind::default() }];
    let imported = write(&Story { variables, kinds, ..Story::default() }, "x").unwrap();
    assert!(imported.text.contains("\nbase http://a.test:81\n"), "{}", imported.text);
    assert!(!imported.text.contains("let host"), "nobody else uses it: {}", imported.text);
    assert_eq!(imported.notes.len(), 1, "{:?}", imported.notes);
}
