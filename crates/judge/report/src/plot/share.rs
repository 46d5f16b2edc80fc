//! Draws a value as a bar against its limit, for the rows of the ladder.

use maud::{Markup, html};

use super::px;

/// Draws a share. More than 100 % fills the bar. The bar stretches to the available width.
pub(crate) fn share(used: f64, class: &str) -> Markup {
    let width = if used.is_finite() { (used * 100.0).clamp(0.6, 100.0) } else { 0.0 };
    html! {
        svg.share viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
            rect.track x="0" y="0" width="100" height="10" {}
            @for quarter in ["25", "50", "75"] {
                line.quarter x1=(quarter) x2=(quarter) y1="0" y2="10" {}
            }
            rect class=(class) x="0" y="0" width=(px(width)) height="10" {}
        }
    }
}
