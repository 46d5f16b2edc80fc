//! Which requests belong together: those of one page, and what a person does next.

use std::collections::HashSet;

use fathom_model::units::Nanos;
use hyper::Uri;

use super::facts::RequestHead;

/// A person does something new after a second without traffic; an earlier request was caused by the one before.
const PAUSE_MIN: Nanos = Nanos::from_secs(1);
/// More clicks than a person makes in a day; what comes then belongs to the last page.
const PAGES_MAX: usize = 5000;
/// Redirects of one page that are remembered.
const REDIRECTS_MAX: usize = 1000;
/// The longest title that is kept.
const TITLE_CHARS_MAX: usize = 80;

/// One page, or what followed a pause.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) begin_wall: Nanos,
    pub(super) title: String,
    /// The title is that of a document, and not the name of a request.
    is_titled: bool,
}

/// The pages in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct PageBook {
    pub(super) pages: Vec<Page>,
    /// Where answers of the newest page have sent the browser.
    redirects: HashSet<String>,
}

/// The name of a page in the log.
pub(super) fn page_id(idx: usize) -> String {
    format!("page_{}", idx + 1)
}

impl PageBook {
    /// The page that a request belongs to, after this long without traffic.
    pub(super) fn page_of(&mut self, head: &RequestHead, quiet: Option<Nanos>, begin_wall: Nanos) -> String {
        let is_after_pause = quiet.is_some_and(|quiet| quiet >= PAUSE_MIN);
        let field = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        // Browsers since 2023 tell what a request is for (Fetch Metadata).
        let is_document = field("sec-fetch-mode") == Some("navigate") && field("sec-fetch-dest") == Some("document");
        // A document that is fetched ahead was not clicked yet.
        let is_navigation = is_document && field("sec-purpose").is_none();
        // A form may be sent later to the URL where its page was.
        let is_redirected = self.redirects.remove(&head.url.to_string());
        let is_new = (is_navigation || is_after_pause) && !is_redirected && self.pages.len() < PAGES_MAX;
        if self.pages.is_empty() || is_new {
            // The steps of the page have the method as well.
            let title = shortened(head.url.path());
            self.pages.push(Page { begin_wall, title, is_titled: false });
            self.redirects.clear();
        }
        page_id(self.pages.len() - 1)
    }

    /// The next request to where an answer redirects continues the page.
    pub(super) fn note_redirect(&mut self, from: &Uri, location: &str) {
        if self.redirects.len() < REDIRECTS_MAX {
            self.redirects.extend(resolved(from, location).map(|url| url.to_string()));
        }
    }

    /// Gives a page the title of its first document.
    pub(super) fn note_document(&mut self, id: &str, html: &str) {
        let Some(title) = title_of(html) else { return };
        if let Some(page) = self.page_mut(id).filter(|page| !page.is_titled) {
            (page.title, page.is_titled) = (shortened(&title), true);
        }
    }

    fn page_mut(&mut self, id: &str) -> Option<&mut Page> {
        let number: usize = id.strip_prefix("page_")?.parse().ok()?;
        self.pages.get_mut(number.checked_sub(1)?)
    }
}

/// The URL that a reference on a page stands for, in the forms that servers send (RFC 3986 section 5.3).
fn resolved(page: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next().unwrap_or_default();
    let (scheme, authority) = (page.scheme_str()?, page.authority()?);
    let folder = page.path().rfind('/').map_or("/", |at| &page.path()[..=at]);
    let url = match reference {
        whole if whole.contains("://") => whole.to_owned(),
        rest if rest.starts_with("//") => format!("{scheme}:{rest}"),
        path if path.starts_with('/') => format!("{scheme}://{authority}{path}"),
        query if query.starts_with('?') => format!("{scheme}://{authority}{}{query}", page.path()),
        name => format!("{scheme}://{authority}{folder}{name}"),
    };
    url.parse().ok()
}

fn shortened(text: &str) -> String {
    text.chars().take(TITLE_CHARS_MAX).collect()
}

/// The text of the `title` element, on one line.
fn title_of(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let begin = lower.find("<title").map(|at| at + "<title".len())?;
    let begin = begin + lower[begin..].find('>')? + 1;
    let end = begin + lower[begin..].find("</title")?;
    let text = html[begin..end].split_whitespace().collect::<Vec<_>>().join(" ");
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    let text = named.iter().fold(text, |text, (name, sign)| text.replace(name, sign));
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, Method, Version};

    use super::*;

    fn head(method: Method, url: &str, dest: Option<&'static str>) -> RequestHead {
        let mut headers = HeaderMap::new();
        if let Some(dest) = dest {
            let mode = if dest == "document" { "navigate" } else { "cors" };
            headers.insert("sec-fetch-mode", mode.parse().unwrap());
            headers.insert("sec-fetch-dest", dest.parse().unwrap());
        }
        RequestHead { method, url: url.parse().unwrap(), version: Version::HTTP_11, headers }
    }

    #[test]
    fn a_page_begins_with_a_document_or_after_a_pause_and_goes_on_with_a_redirect() {
        let mut book = PageBook::default();
        let quiet = |is_long: bool| Some(if is_long { PAUSE_MIN } else { Nanos(0) });
        let mut page = |head: RequestHead, is_long: bool| book.page_of(&head, quiet(is_long), Nanos(0));
        assert_eq!(page(head(Method::GET, "http://a.test/", Some("document")), false), "page_1");
        assert_eq!(page(head(Method::GET, "http://a.test/x.css", Some("style")), false), "page_1");
        assert_eq!(page(head(Method::GET, "http://a.test/frame", Some("iframe")), false), "page_1");
        assert_eq!(page(head(Method::POST, "http://a.test/api", Some("empty")), true), "page_2");
        assert_eq!(page(head(Method::POST, "http://a.test/login", Some("document")), true), "page_3");
        book.note_redirect(&"http://a.test/login".parse().unwrap(), "/home");
        let mut page = |head: RequestHead, is_long: bool| book.page_of(&head, quiet(is_long), Nanos(0));
        assert_eq!(page(head(Method::GET, "http://a.test/home", Some("document")), false), "page_3");
        assert_eq!(page(head(Method::GET, "http://a.test/old", None), false), "page_3");
        assert_eq!(page(head(Method::GET, "http://a.test/old", None), true), "page_4");
        assert_eq!(page(head(Method::POST, "http://a.test/home", Some("document")), false), "page_5");
        for title in ["<title>Home</title>", "<title>Other</title>", ""] {
            book.note_document("page_3", title);
        }
        book.note_document("page_9", "<title>x</title>");
        let titles: Vec<_> = book.pages.iter().map(|page| page.title.as_str()).collect();
        assert_eq!(titles, ["/", "/api", "Home", "/old", "/home"]);
    }

    #[test]
    fn pages_and_redirects_are_bounded() {
        let mut book = PageBook::default();
        for n in 0..2 * PAGES_MAX {
            let page = book.page_of(&head(Method::GET, "http://a.test/", Some("document")), None, Nanos(0));
            assert_eq!(page, page_id(n.min(PAGES_MAX - 1)));
            book.note_redirect(&"http://a.test/".parse().unwrap(), &format!("/{n}"));
        }
        assert_eq!((book.pages.len(), book.redirects.len()), (PAGES_MAX, REDIRECTS_MAX));
    }

    #[test]
    fn a_redirect_is_found_by_its_whole_url() {
        let page: Uri = "https://a.test/x/y?q".parse().unwrap();
        for (reference, url) in [
            ("z", "https://a.test/x/z"),
            ("/z#top", "https://a.test/z"),
            ("?z", "https://a.test/x/y?z"),
            ("//b.test/z", "https://b.test/z"),
            ("http://b.test/z", "http://b.test/z"),
        ] {
            assert_eq!(resolved(&page, reference).unwrap().to_string(), url);
        }
        assert_eq!(resolved(&page, "https://a b/"), None);
    }

    #[test]
    fn the_title_of_a_document_is_found_in_any_text() {
        assert_eq!(title_of("<html><TITLE lang=de>\n Log in &amp; shop\n</Title>"), Some("Log in & shop".to_owned()));
        for html in ["", "<title", "<title>", "<title></title>", "</title><title>x", "\u{130}<title"] {
            assert_eq!(title_of(html), None, "{html}");
        }
    }
}
