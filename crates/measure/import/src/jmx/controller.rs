//! Controllers: the order and number of requests.

#![expect(clippy::unnecessary_wraps, reason = "the rows of a table have one shape")]

use super::{
    super::import_tree::{ImportAction, ThinkTime},
    condition,
    element::Element,
    reader::JmxReader,
    scope::{JmxScope, millis},
};

type ActionsResult = Result<Vec<ImportAction>, String>;

/// A flow control action that waits.
pub(super) fn pause(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    const PAUSE: &str = "1";
    if element.text("ActionProcessor.action") != Some(PAUSE) {
        return Err("it ends a user, a loop or the test".to_owned());
    }
    let text = reader.text(element.text("ActionProcessor.duration").unwrap_or("0"));
    let time = reader.tree.fixed(&text).and_then(|text| millis(&text)).ok_or("its time is not a number")?;
    // Timers wait before it as before a request.
    let timers = scope.thinks.iter().cloned();
    Ok(timers.chain([ThinkTime::Fixed(time)]).map(ImportAction::Think).collect())
}

pub(super) fn plain(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    Ok(reader.acts(&element.children, scope))
}

pub(super) fn transaction(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    if element.is_on("TransactionController.includeTimers") {
        reader.remarks.0.push("the time that users think is not part of its time".to_owned());
    }
    Ok(vec![ImportAction::Transaction { name: element.title(), acts: reader.acts(&element.children, scope) }])
}

pub(super) fn repeat(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    let text = element.text("LoopController.loops").unwrap_or("1");
    let n = match text.trim() {
        "-1" => None,
        text => Some(reader.number(text).ok_or_else(|| format!("its number of loops is not a number: {text}"))?),
    };
    Ok(vec![ImportAction::Repeat { n, acts: reader.acts(&element.children, scope) }])
}

pub(super) fn under_condition(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    let condition = condition(reader, element.text("IfController.condition"))?;
    if element.is_on("IfController.evaluateAll") {
        reader.remarks.0.push("its condition is looked at once, and not before each child".to_owned());
    }
    Ok(vec![ImportAction::If { condition, acts: reader.acts(&element.children, scope) }])
}

pub(super) fn as_long_as(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    let condition = condition(reader, element.text("WhileController.condition"))?;
    Ok(vec![ImportAction::While { condition, acts: reader.acts(&element.children, scope) }])
}

fn condition(
    reader: &mut JmxReader,
    source: Option<&str>,
) -> Result<super::super::import_tree::ImportedCondition, String> {
    let source = source.unwrap_or_default();
    condition::read(source, &mut reader.remarks).ok_or_else(|| format!("its condition is not understood: {source}"))
}

pub(super) fn once(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    Ok(vec![ImportAction::Once(reader.acts(&element.children, scope))])
}

/// A share of the rounds; JMeter counts them, a scenario decides at random.
pub(super) fn share(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    const PERCENT: &str = "1";
    if element.text("ThroughputController.style") != Some(PERCENT) {
        return Err("it is done that many times in all".to_owned());
    }
    let text = reader.text(element.text("ThroughputController.percentThroughput").unwrap_or("100"));
    let percent = reader.tree.fixed(&text).and_then(|text| text.trim().parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent)).ok_or("its share is not a percentage")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a percentage")]
    let per_myriad = (percent * 100.0).round() as u32;
    Ok(vec![ImportAction::Share { per_myriad, acts: reader.acts(&element.children, scope) }])
}

/// The actions of each child separately, and before them the actions at the beginning.
fn branches(
    reader: &mut JmxReader,
    element: &Element,
    outside: &JmxScope<'_>,
) -> (Vec<ImportAction>, Vec<Vec<ImportAction>>) {
    let (scope, mut prelude) = reader.apply_configuration(outside, &element.children);
    let mut branches = Vec::new();
    for child in &element.children {
        let acts = reader.act(child, &scope);
        if acts.iter().all(|act| matches!(act, ImportAction::LeftOut(_))) {
            prelude.extend(acts);
        } else {
            branches.push(acts);
        }
    }
    (prelude, branches)
}

pub(super) fn one_of(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    let (mut acts, branches) = branches(reader, element, scope);
    acts.push(ImportAction::OneOf(branches));
    Ok(acts)
}

pub(super) fn in_turn(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    reader.remarks.0.push("its children are chosen at random with equal shares, not in turn".to_owned());
    one_of(reader, element, scope)
}

pub(super) fn in_any_order(reader: &mut JmxReader, element: &Element, scope: &JmxScope<'_>) -> ActionsResult {
    reader.remarks.0.push("its children come in the order of the plan".to_owned());
    plain(reader, element, scope)
}
