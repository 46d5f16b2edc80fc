//! Parses the control flow of users: waits, loops, choices, and their conditions.

use super::{
    super::{
        ast::{
            Branch, Chance, CompareOp, ConditionExpr, Do, If, Meet, Name, PaceDef, Repeat, Section, Statement,
            TestExpr, TestPredicate, TestSubject, Think, Transaction, WaitExpr, While,
        },
        blocks::LineNode,
        diagnostic::{BoxedDiagnostic, Diagnostic},
    },
    LineContext, Parser,
    cursor::{Cursor, count, time},
    file::{clause, percent},
    unknown,
};

/// Comparison operators.
pub(in super::super) const COMPARISONS: [(&str, CompareOp); 6] = [
    ("==", CompareOp::Equal),
    ("!=", CompareOp::Unequal),
    ("<", CompareOp::Less),
    ("<=", CompareOp::AtMost),
    (">", CompareOp::More),
    (">=", CompareOp::AtLeast),
];

impl Parser<'_> {
    pub(super) fn statements(&mut self, nodes: &[LineNode], scene: LineContext) -> Vec<Statement> {
        let mut all = Vec::new();
        for node in nodes {
            if self.is_full() {
                break;
            }
            self.statement(node, scene, &mut all);
        }
        all
    }

    /// Parses one statement; `else` becomes a part of the statement before it.
    pub(super) fn statement(&mut self, node: &LineNode, scene: LineContext, all: &mut Vec<Statement>) {
        let (word, _) = self.begin(node);
        let span = node.span;
        match word.text.as_str() {
            "step" => all.extend(self.step(node).map(|step| Statement::Step(Box::new(step)))),
            "transaction" => {
                let name = self.line(node, |cursor| cursor.words("a name"));
                let body = self.statements(&node.children, LineContext::Block);
                all.extend(name.map(|name| Statement::Transaction(Transaction { span, name, body })));
            }
            "think" => {
                all.extend(self.leaf(node, wait).map(|time| Statement::Think(Think { span, time })));
            }
            "meet" => {
                let meet = self.leaf(node, |cursor| {
                    let users = cursor.count("a number of users", 2)?;
                    if cursor.keyword("within").is_none() {
                        return Err(cursor
                            .missing("`within`")
                            .fix("add the longest wait: `meet 100 within 2s`")
                            .boxed());
                    }
                    Ok(Statement::Meet(Meet { span, users, within: cursor.time("a time")? }))
                });
                all.extend(meet);
            }
            "repeat" => all.extend(self.repeat(node)),
            "while" => {
                let head = self.line(node, |cursor| {
                    let condition = condition(cursor)?;
                    let max = cursor.keyword("max").map(|_| cursor.count("a number", 1)).transpose()?;
                    Ok((condition, max))
                });
                let (pace, body) = self.looped(&node.children);
                all.extend(head.map(|(condition, max)| Statement::While(While { span, condition, max, pace, body })));
            }
            "if" => {
                let branch = self.branch(node, condition);
                all.extend(branch.map(|branch| Statement::If(If { branches: vec![branch], otherwise: None })));
            }
            "else" => self.otherwise(node, all),
            "chance" => {
                let share = self.line(node, |cursor| percent(&cursor.need("a share such as 30%")?));
                let body = self.statements(&node.children, LineContext::Block);
                all.extend(share.map(|share| Statement::Chance(Chance { span, share, body, otherwise: None })));
            }
            "do" => {
                all.extend(self.leaf(node, |cursor| Ok(Statement::Do(Do { span, name: cursor.words("a part")? }))));
            }
            "let" => all.extend(self.variable(node).map(Statement::Let)),
            _ => self.fault(*unknown(&word, scene)),
        }
    }

    fn branch(
        &mut self,
        node: &LineNode,
        read: impl FnOnce(&mut Cursor<'_>) -> Result<ConditionExpr, BoxedDiagnostic>,
    ) -> Option<Branch> {
        let condition = self.line(node, read);
        let body = self.statements(&node.children, LineContext::Block);
        condition.map(|condition| Branch { span: node.span, condition, body })
    }

    /// `else` and `else if`
    fn otherwise(&mut self, node: &LineNode, before: &mut [Statement]) {
        let (_, mut cursor) = self.begin(node);
        let is_if = cursor.keyword("if").is_some();
        match before.last_mut() {
            Some(Statement::If(choice)) if choice.otherwise.is_none() && is_if => {
                let branch = self.branch(node, |cursor| {
                    cursor.keyword("if");
                    condition(cursor)
                });
                choice.branches.extend(branch);
            }
            Some(Statement::If(If { otherwise, .. }) | Statement::Chance(Chance { otherwise, .. }))
                if otherwise.is_none() && !is_if =>
            {
                self.line(node, |_| Ok(()));
                *otherwise =
                    Some(Section { span: node.span, body: self.statements(&node.children, LineContext::Block) });
            }
            _ => {
                let fault = Diagnostic::error(node.span, "this `else` does not belong to an `if` or a `chance`");
                self.fault(fault.fix("write `else` directly after the block of an `if` or a `chance`"));
                self.statements(&node.children, LineContext::Block);
            }
        }
    }

    fn repeat(&mut self, node: &LineNode) -> Option<Statement> {
        let head = self.line(node, |cursor| {
            let word = cursor.need("a number")?;
            let Some((min, max)) = word.text.split_once("..") else { return Ok((count(&word, 1)?, None)) };
            let dots = word.span.start + min.len();
            let min = count(&Name { text: min.to_owned(), span: (word.span.start..dots).into() }, 0)?;
            let max = count(&Name { text: max.to_owned(), span: (dots + 2..word.span.end).into() }, min.value.max(1))?;
            Ok((min, Some(max)))
        });
        let (pace, body) = self.looped(&node.children);
        let (min, max) = head?;
        Some(Statement::Repeat(Repeat { span: node.span, min, max, pace, body }))
    }

    /// The inside of a loop.
    fn looped(&mut self, nodes: &[LineNode]) -> (Option<PaceDef>, Vec<Statement>) {
        let (mut pace, mut body) = (None, Vec::new());
        for node in nodes {
            let (word, _) = self.begin(node);
            if word.text == "pace" {
                let new = self.pace(node);
                self.once(&mut pace, new, |pace| pace.span);
            } else {
                self.statement(node, LineContext::Loop, &mut body);
            }
        }
        (pace, body)
    }

    pub(super) fn pace(&mut self, node: &LineNode) -> Option<PaceDef> {
        self.leaf(node, wait).map(|time| PaceDef { span: node.span, time })
    }
}

/// `2s`, `1s..3s`, `exponential 2s`, `normal 5s 1s`
fn wait(cursor: &mut Cursor<'_>) -> Result<WaitExpr, BoxedDiagnostic> {
    const USAGE: &str = "write 2s, 1s..3s, exponential 2s (its mean) or normal 5s 1s (mean and deviation)";
    let usage = |fault: BoxedDiagnostic| if fault.fix.is_some() { fault } else { fault.fix(USAGE).boxed() };
    let word = cursor.need("a time").map_err(usage)?;
    Ok(match word.text.as_str() {
        "exponential" => WaitExpr::Exponential(cursor.time("its mean").map_err(usage)?),
        "normal" => {
            let mean = cursor.time("its mean").map_err(usage)?;
            WaitExpr::Normal(mean, cursor.time("its deviation").map_err(usage)?)
        }
        text => match text.split_once("..") {
            Some((min, max)) => {
                let dots = word.span.start + min.len();
                let min = time(&Name { text: min.to_owned(), span: (word.span.start..dots).into() }).map_err(usage)?;
                let max =
                    time(&Name { text: max.to_owned(), span: (dots + 2..word.span.end).into() }).map_err(usage)?;
                if min.value > max.value {
                    return Err(Diagnostic::error(word.span, "the shorter time comes first").boxed());
                }
                WaitExpr::Uniform(min, max)
            }
            None => WaitExpr::Fixed(time(&word).map_err(usage)?),
        },
    })
}

/// Tests joined by `and`, or by `or`.
fn condition(cursor: &mut Cursor<'_>) -> Result<ConditionExpr, BoxedDiagnostic> {
    let mut condition = ConditionExpr { any: false, tests: Vec::new() };
    loop {
        condition.tests.push(test_of_text(cursor)?);
        let is_first = condition.tests.len() == 1;
        let (and, or) = (cursor.keyword("and"), cursor.keyword("or"));
        let Some(word) = and.or(or) else { return Ok(condition) };
        if !is_first && condition.any != or.is_some() {
            let fault = Diagnostic::error(word, "`and` and `or` in one condition");
            return Err(fault.fix("put an `if` within the other").boxed());
        }
        condition.any = or.is_some();
    }
}

/// A test outside of `expect`.
fn test_of_text(cursor: &mut Cursor<'_>) -> Result<TestExpr, BoxedDiagnostic> {
    let is_quoted = !cursor.is_done() && cursor.rest().starts_with('"');
    let subject = cursor.operand("something to test, such as ${name}")?;
    if let (Some(text), false) = (subject.fixed(), is_quoted) {
        let fault = match text {
            "header" | "body" | "json" | "cookie" | "status" => {
                Diagnostic::error(subject.span, "an answer can only be tested by `expect`")
                    .fix(format!("keep it first: `take x = {text} …`, then test `${{x}}`"))
            }
            _ => {
                Diagnostic::error(subject.span, "a test begins with a hole").fix(format!("did you mean `${{{text}}}`?"))
            }
        };
        return Err(fault.boxed());
    }
    test(cursor, TestSubject::Text(subject))
}

/// Parses the claim about a subject.
pub(super) fn test(cursor: &mut Cursor<'_>, subject: TestSubject) -> Result<TestExpr, BoxedDiagnostic> {
    const WORDS: [&str; 9] = ["==", "!=", "<", "<=", ">", ">=", "contains", "matches", "exists"];
    let start = match &subject {
        TestSubject::Header(name) | TestSubject::Json(name) | TestSubject::Cookie(name) => name.span.start,
        TestSubject::Body => cursor.at,
        TestSubject::Text(template) => template.span.start,
    };
    let negated = cursor.keyword("not");
    let word =
        cursor.need("a comparison").map_err(|fault| fault.fix(format!("there is {}", WORDS.join(", "))).boxed())?;
    let comparison = COMPARISONS.iter().find(|(sign, _)| *sign == word.text);
    let claim = match (word.text.as_str(), comparison) {
        (_, Some((_, comparison))) => {
            if let Some(span) = negated {
                return Err(Diagnostic::error(span, "`not` before a sign")
                    .fix("turn the sign round: `!=` for `==`, `>=` for `<`")
                    .boxed());
            }
            TestPredicate::Compare(*comparison, cursor.operand("a value")?)
        }
        ("contains", _) => TestPredicate::Contains(cursor.operand("a text")?),
        ("matches", _) => TestPredicate::Matches(cursor.regex()?),
        ("exists", _) => TestPredicate::Exists,
        ("=" | "is" | "equals", _) => return Err(clause(&word, &WORDS).fix("write `==`").boxed()),
        _ => return Err(clause(&word, &WORDS)),
    };
    Ok(TestExpr { span: (start..cursor.at).into(), subject, negated: negated.is_some(), predicate: claim })
}
