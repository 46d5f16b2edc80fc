//! Test plans of JMeter, as it saves them (`.jmx`).
//!
//! Each supported element is a row of [`CONFIGURATIONS`], [`ACTS`] or one of the tables for answers. Any other element is
//! reported with its path in the tree.

mod checks;
mod condition;
mod configuration;
mod controller;
mod element;
mod function;
mod group;
mod reader;
mod sampler;
mod scope;
mod xml;

use self::{element::Element, reader::JmxReader, scope::JmxScope};
use super::{
    Error,
    import_tree::{Extraction, ImportAction, ImportNote, ImportText, ImportTree, ImportedExpect},
};

/// Adds to a scope; the returned actions run at the beginning of the controller.
type Configure = for<'a> fn(&mut JmxReader, &'a Element, &mut JmxScope<'a>) -> Result<Vec<ImportAction>, String>;

/// Elements that apply to their siblings and everything below them.
const CONFIGURATIONS: &[(&str, Configure)] = &[
    ("Arguments", configuration::variables),
    ("ConfigTestElement", configuration::defaults),
    ("HeaderManager", configuration::headers),
    ("CookieManager", configuration::cookies),
    ("AuthManager", configuration::logins),
    ("DNSCacheManager", configuration::names),
    ("CSVDataSet", configuration::data),
    ("CounterConfig", configuration::counter),
    ("RandomVariableConfig", configuration::random),
    ("ConstantTimer", configuration::constant),
    ("UniformRandomTimer", configuration::uniform),
    ("GaussianRandomTimer", configuration::gaussian),
    ("PoissonRandomTimer", configuration::poisson),
    ("ConstantThroughputTimer", configuration::constant_throughput),
    ("PreciseThroughputTimer", configuration::precise_throughput),
    ("SyncTimer", configuration::meeting),
    ("ResultAction", configuration::on_error),
];

/// Reads an assertion.
type Assert = fn(&Element, &mut dyn FnMut(&str) -> ImportText) -> Result<Vec<ImportedExpect>, String>;

const ASSERTIONS: &[(&str, Assert)] = &[
    ("ResponseAssertion", checks::response),
    ("DurationAssertion", checks::duration),
    ("JSONPathAssertion", checks::json_path),
];

/// Reads an extractor.
type Extract = fn(&Element, &mut dyn FnMut(&str) -> ImportText) -> Result<Vec<Extraction>, String>;

const EXTRACTORS: &[(&str, Extract)] =
    &[("RegexExtractor", checks::regex), ("BoundaryExtractor", checks::boundary), ("JSONPostProcessor", checks::json)];

/// Reads an element with actions, within its scope.
type Perform = fn(&mut JmxReader, &Element, &JmxScope<'_>) -> Result<Vec<ImportAction>, String>;

/// Requests and controllers.
const ACTS: &[(&str, Perform)] = &[
    ("HTTPSamplerProxy", sampler::http),
    // The names in plans of JMeter before 2.6, which it still loads.
    ("HTTPSampler", sampler::http),
    ("HTTPSampler2", sampler::http),
    ("TestAction", controller::pause),
    ("GenericController", controller::plain),
    ("RecordingController", controller::plain),
    ("TransactionController", controller::transaction),
    ("LoopController", controller::repeat),
    ("IfController", controller::under_condition),
    ("WhileController", controller::as_long_as),
    ("OnceOnlyController", controller::once),
    ("ThroughputController", controller::share),
    ("InterleaveControl", controller::in_turn),
    ("RandomController", controller::one_of),
    ("RandomOrderController", controller::in_any_order),
];

/// Elements that only display results or create other elements, and send nothing.
const SILENT: &[&str] = &[
    "ResultCollector",
    "Summariser",
    "DebugSampler",
    "DebugPostProcessor",
    "TestFragmentController",
    "ProxyControl",
    "WorkBench",
    "MirrorServer",
];

/// Reads one plan.
///
/// # Errors
/// The text is not a plan, or its XML is not accepted.
pub fn read(text: &str) -> Result<ImportTree, Error> {
    let root = xml::read(text.trim_start_matches('\u{feff}'))?;
    let no_plan = |what: &str| Error::Xml { what: what.to_owned(), line: 1 };
    if root.tag != "jmeterTestPlan" {
        return Err(no_plan(&format!("its outermost element is <{}>", root.tag)));
    }
    let tree = root.children.iter().find(|node| node.tag == "hashTree").ok_or_else(|| no_plan("it is empty"))?;
    let elements = Element::all_of(tree);
    let plan =
        elements.iter().find(|element| element.tag == "TestPlan").ok_or_else(|| no_plan("it has no test plan"))?;
    let mut reader = JmxReader::default();
    reader.plan(plan);
    Ok(reader.tree)
}

impl JmxReader {
    fn plan(&mut self, plan: &Element) {
        self.path.push(plan.title());
        for line in plan.properties.members_in("TestPlan.user_defined_variables", "Arguments.arguments") {
            self.define(line);
        }
        self.definitions(&plan.children);
        for (property, what) in [
            ("TestPlan.serialize_threadgroups", "its thread groups run at the same time, not one after the other"),
            ("TestPlan.functional_mode", "it does not keep all answers"),
        ] {
            if plan.is_on(property) {
                self.remarks.0.push(what.to_owned());
            }
        }
        self.n_groups = plan.children.iter().filter(|child| child.enabled && group::is_one(child)).count();
        let (scope, prelude) = self.apply_configuration(&JmxScope::default(), &plan.children);
        let of_plan: Vec<_> = self.take_remarks();
        self.tree.notes.extend(of_plan);
        let (left, prelude): (Vec<_>, Vec<_>) =
            prelude.into_iter().partition(|act| matches!(act, ImportAction::LeftOut(_)));
        self.tree.notes.extend(
            left.into_iter().filter_map(|act| if let ImportAction::LeftOut(note) = act { Some(note) } else { None }),
        );
        for child in &plan.children {
            if child.enabled && group::is_one(child) {
                let kind = group::read(self, child, &scope, &prelude);
                self.tree.kinds.push(kind);
            } else if let Some(note) = self.unknown(child).or_else(|| self.disabled(child)) {
                self.tree.notes.push(note);
            }
        }
        self.path.pop();
    }

    /// Variables are global, wherever they are defined.
    fn definitions(&mut self, elements: &[Element]) {
        for element in elements.iter().filter(|element| element.enabled) {
            self.path.push(element.title());
            if element.tag == "Arguments" {
                element.properties.members("Arguments.arguments").iter().for_each(|line| self.define(line));
            }
            self.definitions(&element.children);
            self.path.pop();
        }
    }

    fn define(&mut self, line: &element::Properties) {
        let value = self.text(line.text("Argument.value").unwrap_or_default());
        if let Some(name) = line.text("Argument.name") {
            self.tree.variables.push((name.to_owned(), value));
        }
        let left = self.take_remarks();
        self.tree.notes.extend(left);
    }

    /// The scope of the children of an element, and the actions of their configurations at the beginning.
    fn apply_configuration<'a>(
        &mut self,
        outside: &JmxScope<'a>,
        children: &'a [Element],
    ) -> (JmxScope<'a>, Vec<ImportAction>) {
        let (mut scope, mut prelude) = (outside.clone(), Vec::new());
        for child in children.iter().filter(|child| child.enabled) {
            self.path.push(child.title());
            let done = self.configure(child, &mut scope);
            prelude.extend(self.take_remarks().into_iter().map(ImportAction::LeftOut));
            match done {
                Ok(acts) => prelude.extend(acts),
                Err(what) => {
                    prelude.push(ImportAction::LeftOut(self.note(format!("{} is left out: {what}", child.tag))));
                }
            }
            self.path.pop();
        }
        (scope, prelude)
    }

    fn configure<'a>(&mut self, element: &'a Element, scope: &mut JmxScope<'a>) -> Result<Vec<ImportAction>, String> {
        let tag = element.tag.as_str();
        if let Some((_, configure)) = CONFIGURATIONS.iter().find(|(known, _)| *known == tag) {
            return configure(self, element, scope);
        }
        let remarks = &mut self.remarks;
        let mut text = |source: &str| function::text(source, remarks);
        if let Some((_, assert)) = ASSERTIONS.iter().find(|(known, _)| *known == tag) {
            scope.expects.extend(assert(element, &mut text)?);
        }
        if let Some((_, extract)) = EXTRACTORS.iter().find(|(known, _)| *known == tag) {
            scope.takes.extend(extract(element, &mut text)?);
        }
        Ok(Vec::new())
    }

    /// The actions of the children of a controller, in sequence.
    fn acts(&mut self, children: &[Element], outside: &JmxScope<'_>) -> Vec<ImportAction> {
        let (scope, mut acts) = self.apply_configuration(outside, children);
        for child in children {
            acts.extend(self.act(child, &scope));
        }
        acts
    }

    /// The actions of one child of a controller.
    fn act(&mut self, element: &Element, scope: &JmxScope<'_>) -> Vec<ImportAction> {
        if let Some(note) = self.disabled(element).or_else(|| self.unknown(element)) {
            return vec![ImportAction::LeftOut(note)];
        }
        let Some((_, perform)) = ACTS.iter().find(|(known, _)| *known == element.tag) else { return Vec::new() };
        self.path.push(element.title());
        let mut acts = match perform(self, element, scope) {
            Ok(acts) => acts,
            Err(what) => {
                vec![ImportAction::LeftOut(
                    self.note(format!("{} is left out with all that is in it: {what}", element.tag)),
                )]
            }
        };
        // Remarks precede the actions that they are about.
        acts.splice(..0, self.take_remarks().into_iter().map(ImportAction::LeftOut));
        self.path.pop();
        acts
    }

    /// The note for a disabled element.
    fn disabled(&mut self, element: &Element) -> Option<ImportNote> {
        if element.enabled || SILENT.contains(&element.tag.as_str()) {
            return None;
        }
        Some(self.note_of(element, format!("{} is disabled, and left out", element.tag)))
    }

    /// The note for an element that is in no table.
    fn unknown(&mut self, element: &Element) -> Option<ImportNote> {
        let tag = element.tag.as_str();
        let is_known = CONFIGURATIONS.iter().any(|(known, _)| *known == tag)
            || ASSERTIONS.iter().any(|(known, _)| *known == tag)
            || EXTRACTORS.iter().any(|(known, _)| *known == tag)
            || ACTS.iter().any(|(known, _)| *known == tag)
            || SILENT.contains(&tag)
            || group::is_one(element);
        if is_known || !element.enabled {
            return None;
        }
        let with = if element.children.is_empty() { "" } else { " with all that is in it" };
        Some(self.note_of(element, format!("{tag} is not supported, and left out{with}")))
    }
}

#[cfg(test)]
mod tests;
