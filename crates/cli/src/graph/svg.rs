//! A picture drawn by ourselves: modules in layers on the left, kinds of live paths as columns on the right.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scoutline_abi::api::Graph;

use super::{kinds, label, links};

const BOX: (f64, f64) = (92.0, 30.0);
const GAP: (f64, f64) = (28.0, 44.0);
const MARGIN: f64 = 24.0;
/// Room for a column's label, written upwards.
const COLUMN: f64 = BOX.0 + 34.0;

/// How far above the devices each module stands: one more than the highest module below it. Links that do not go
/// up the stack (ETH asks ARP for an address) count for nothing, and a cycle stops at the number of modules.
fn heights(graph: &Graph) -> BTreeMap<&str, usize> {
    let mut heights: BTreeMap<&str, usize> =
        graph.modules.iter().map(|module| (module.as_str(), 0)).collect();
    let most = graph.modules.len().saturating_sub(1);
    for _ in 0..graph.modules.len() {
        for (upper, _, lower, _) in links(graph).filter(|(_, _, _, service)| *service == "up") {
            let above = heights.get(lower).map_or(0, |height| (height + 1).min(most));
            heights.entry(upper).and_modify(|height| *height = above.max(*height));
        }
    }
    heights
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn draw_box(out: &mut String, x: f64, y: f64, text: &str, fill: &str) {
    let (width, height) = BOX;
    let _ = writeln!(
        out,
        "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width}\" height=\"{height}\" rx=\"5\" fill=\"{fill}\" stroke=\"#444\"/>\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
        x + width / 2.0,
        y + height / 2.0 + 4.0,
        escaped(text)
    );
}

fn draw_line(out: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ =
        writeln!(out, "<line x1=\"{x1:.0}\" y1=\"{y1:.0}\" x2=\"{x2:.0}\" y2=\"{y2:.0}\" stroke=\"#777\"/>");
}

pub(super) fn draw(graph: &Graph) -> String {
    let heights = heights(graph);
    let kinds = kinds(graph);
    let top = heights.values().copied().max().unwrap_or(0);
    let tallest = kinds.keys().map(|kind| kind.stages.len()).max().unwrap_or(0).max(top + 1);
    let layer_y = |height: usize| MARGIN + 24.0 + (tallest - 1 - height) as f64 * (BOX.1 + GAP.1);

    // Where each module's box stands.
    let mut used: BTreeMap<usize, usize> = BTreeMap::new();
    let mut places: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for module in &graph.modules {
        let height = heights[module.as_str()];
        let column = used.entry(height).or_default();
        places.insert(module, (MARGIN + *column as f64 * (BOX.0 + GAP.0), layer_y(height)));
        *column += 1;
    }
    let modules_width = used.values().copied().max().unwrap_or(0) as f64 * (BOX.0 + GAP.0);
    let paths_x = MARGIN * 2.0 + modules_width;

    let mut body = String::new();
    let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{MARGIN}\" font-weight=\"bold\">modules</text>");
    let _ = writeln!(body, "<text x=\"{paths_x:.0}\" y=\"{MARGIN}\" font-weight=\"bold\">live paths</text>");
    for (upper, _, lower, _) in links(graph) {
        if let (Some(from), Some(to)) = (places.get(upper), places.get(lower)) {
            draw_line(&mut body, (from.0 + BOX.0 / 2.0, from.1 + BOX.1), (to.0 + BOX.0 / 2.0, to.1));
        }
    }
    for (module, (x, y)) in &places {
        draw_box(&mut body, *x, *y, module, "#dbe9f6");
    }
    for (index, (kind, paths)) in kinds.iter().enumerate() {
        let x = paths_x + index as f64 * COLUMN;
        for (height, stage) in kind.stages.iter().enumerate() {
            if height > 0 {
                let middle = x + BOX.0 / 2.0;
                draw_line(&mut body, (middle, layer_y(height) + BOX.1), (middle, layer_y(height - 1)));
            }
            draw_box(&mut body, x, layer_y(height), stage, "#e6f4d8");
        }
        let (tx, ty) = (x + BOX.0 + 14.0, layer_y(0) + BOX.1);
        let text = escaped(&label(kind, paths));
        let _ = writeln!(
            body,
            "<text x=\"{tx:.0}\" y=\"{ty:.0}\" transform=\"rotate(-90 {tx:.0} {ty:.0})\">{text}</text>"
        );
    }
    let width = paths_x + (kinds.len().max(1)) as f64 * COLUMN + MARGIN;
    let height = layer_y(0) + BOX.1 + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::sample;

    #[test]
    fn modules_stand_above_what_they_use() {
        let graph = sample();
        let heights = super::heights(&graph);
        assert_eq!(["ETH", "ARP", "IP4", "TCP", "SOCKET"].map(|name| heights[name]), [0, 1, 1, 2, 3]);
    }

    #[test]
    fn a_cycle_ends_and_text_is_escaped() {
        let mut graph = sample();
        graph.links.push(("ETH.x".into(), "SOCKET.up".into()));
        let text = super::draw(&graph);
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(text.contains("a&lt;b (2): 2 paths"), "{text}");
    }
}
