//! Elements of a plan, without the XStream wrapping.

use super::xml::XmlNode;

/// A property: a text, or a collection of properties with their own names.
#[derive(Debug, PartialEq, Eq)]
enum Property {
    Text(String),
    Collection(Vec<Properties>),
}

/// Names and values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Properties {
    /// The name of the whole, or the text of a member without names.
    pub(super) name: String,
    list: Vec<(String, Property)>,
}

/// An element of a plan with its children.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) tag: String,
    /// The name given by the author of the plan.
    pub(super) name: String,
    pub(super) enabled: bool,
    gui: String,
    pub(super) properties: Properties,
    pub(super) children: Vec<Element>,
}

impl Properties {
    fn of(node: &XmlNode) -> Self {
        let mut all = Self { name: node.attribute("name").unwrap_or_default().to_owned(), list: Vec::new() };
        for child in &node.children {
            // Some properties have their name and their value as elements.
            let inner = |tag| child.children.iter().find(|node| node.tag == tag);
            let name =
                child.attribute("name").or_else(|| inner("name").map(|node| node.text.as_str())).unwrap_or_default();
            let value = match (child.tag.as_str(), inner("value")) {
                ("collectionProp", _) => Property::Collection(child.children.iter().map(Self::of_member).collect()),
                ("elementProp", _) => Property::Collection(vec![Self::of(child)]),
                (_, Some(value)) if child.attribute("name").is_none() => Property::Text(value.text.clone()),
                _ => Property::Text(child.text.clone()),
            };
            all.list.push((name.to_owned(), value));
        }
        all
    }

    /// A member of a collection: an element, or a text alone.
    fn of_member(node: &XmlNode) -> Self {
        if node.children.is_empty() && node.tag != "elementProp" {
            return Self { name: node.text.clone(), list: Vec::new() };
        }
        Self::of(node)
    }

    /// A text; empty texts count as missing.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.list.iter().find_map(|(key, value)| match value {
            Property::Text(text) if key == name && !text.is_empty() => Some(text.as_str()),
            _ => None,
        })
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// The members of a collection, or the one element of that name.
    pub(super) fn members(&self, name: &str) -> &[Self] {
        self.list
            .iter()
            .find_map(|(key, value)| match value {
                Property::Collection(members) if key == name => Some(members.as_slice()),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// All texts in order, for collections whose member names have no meaning.
    pub(super) fn texts(&self) -> Vec<&str> {
        let texts = self.list.iter().filter_map(|(_, value)| match value {
            Property::Text(text) => Some(text.as_str()),
            Property::Collection(_) => None,
        });
        texts.collect()
    }

    /// The members of a collection within an element: `HTTPsampler.Arguments` has `Arguments.arguments`.
    pub(super) fn members_in(&self, element: &str, collection: &str) -> &[Self] {
        self.members(element).first().map_or(&[], |inner| inner.members(collection))
    }
}

impl Element {
    /// The elements of a `hashTree`: each is followed by the tree of its children.
    pub(super) fn all_of(tree: &XmlNode) -> Vec<Self> {
        let mut elements: Vec<Self> = Vec::new();
        for node in &tree.children {
            if node.tag == "hashTree" {
                if let Some(above) = elements.last_mut() {
                    above.children.extend(Self::all_of(node));
                }
            } else {
                elements.push(Self::of(node));
            }
        }
        elements
    }

    fn of(node: &XmlNode) -> Self {
        let attribute = |name| node.attribute(name).unwrap_or_default().to_owned();
        Self {
            tag: node.tag.clone(),
            name: attribute("testname"),
            enabled: node.attribute("enabled") != Some("false"),
            gui: attribute("guiclass"),
            properties: Properties::of(node),
            children: Vec::new(),
        }
    }

    /// The title for display: its name, or its class if it has none.
    pub(super) fn title(&self) -> String {
        let class = self.tag.rsplit('.').next().unwrap_or(&self.tag);
        if self.name.is_empty() { class.to_owned() } else { self.name.clone() }
    }

    /// Whether it was made by a certain GUI class, which distinguishes elements of the same class.
    pub(super) fn is_of(&self, gui: &str) -> bool {
        self.gui.rsplit('.').next() == Some(gui)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.properties.text(name)
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.properties.is_on(name)
    }
}
