//! Figures as SVG: panels side by side, each with logarithmic axes and one line per series.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::CoordTranslate;
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange as _;
use plotters::coord::ranged1d::IntoSegmentedCoord as _;
use plotters::prelude::*;

/// Room of one panel, in pixels.
const PANEL: (u32, u32) = (460, 380);
/// Colours in the order of the series, told apart also without full colour vision.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x88, 0x88, 0x88),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A figure.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Stands above all panels.
    pub title: String,
    /// Two or three in a row; those without points are left out.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Stands above it.
    pub title: String,
    /// What the horizontal axis shows, with its unit.
    pub x_label: String,
    /// What the vertical axis shows, with its unit.
    pub y_label: String,
    /// When not empty the panel has bars, in groups with these names, on a linear axis: a point's
    /// first number is then the index of its group.
    pub categories: Vec<String>,
    /// The lines, or the bars of one colour.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points; those that are not positive have no place on logarithmic axes and are left out.
    pub points: Vec<(f64, f64)>,
}

/// Draws `figure` into the file `path`.
pub fn draw(figure: &Figure, path: &Path) -> Result<()> {
    // A run of a few cases only leaves some panels without anything.
    let has_points = |panel: &&Panel| panel.series.iter().any(|series| !series.points.is_empty());
    let panels: Vec<&Panel> = figure.panels.iter().filter(has_points).collect();
    let columns = match panels.len() {
        0 | 1 => 1,
        3 => 3,
        _ => 2,
    };
    let rows = (panels.len() as u32).div_ceil(columns).max(1);
    let area = SVGBackend::new(path, (columns * PANEL.0, rows * PANEL.1 + 40)).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot draw {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let area = area.titled(&figure.title, ("sans-serif", 18)).map_err(|error| failed(&error))?;
    for (panel, place) in panels.into_iter().zip(area.split_evenly((rows as usize, columns as usize))) {
        let drawn =
            if panel.categories.is_empty() { draw_lines(panel, &place) } else { draw_bars(panel, &place) };
        drawn.map_err(|error| failed(&error))?;
    }
    area.present().map_err(|error| failed(&error))
}

fn draw_lines(panel: &Panel, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = panel
        .series
        .iter()
        .map(|series| {
            let points = series.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0);
            (series.name.as_str(), points.collect())
        })
        .collect();
    let all = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, right) = bounds(all().map(|point| point.0), 1.25);
    let (bottom, top) = bounds(all().map(|point| point.1), 1.6);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 14))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(62)
        .build_cartesian_2d((left..right).log_scale(), (bottom..top).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(RGBColor(0xf0, 0xf0, 0xf0))
        .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    // Where the lines are not.
    let rising = lines.iter().any(|(_, points)| matches!(points[..], [first, .., last] if first.1 < last.1));
    draw_legend(
        &mut chart,
        if rising { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::UpperRight },
    )
}

fn draw_bars(panel: &Panel, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let groups = panel.categories.len();
    let all = panel.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let top = all.fold(0.0, f64::max).max(1e-9) * 1.5;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 14))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(62)
        .build_cartesian_2d((0..groups as i32 - 1).into_segmented(), 0.0..top)?;
    let name = |at: &SegmentValue<i32>| match at {
        SegmentValue::CenterOf(group) => panel.categories.get(*group as usize).cloned().unwrap_or_default(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(groups)
        .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
        .light_line_style(TRANSPARENT)
        .y_desc(&panel.y_label)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    // Bars of one group stand side by side; the axis knows whole groups only, so they are placed in pixels.
    let (width, _) = chart.plotting_area().dim_in_pixel();
    let bar = width as i32 / groups.max(1) as i32 / (panel.series.len() as i32 + 1);
    for (index, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let left = bar * index as i32 - bar * panel.series.len() as i32 / 2;
        let bars = series.points.iter().map(|(group, value)| {
            let area = chart.plotting_area();
            let foot = area.map_coordinate(&(SegmentValue::CenterOf(*group as i32), 0.0));
            let head = area.map_coordinate(&(SegmentValue::CenterOf(*group as i32), *value));
            let corners = [(0, 0), (bar - 3, foot.1 - head.1)];
            EmptyElement::at((SegmentValue::CenterOf(*group as i32), *value))
                + Rectangle::new(corners.map(|(x, y)| (x + left, y)), colour.filled())
                + Text::new(short(*value), (left, -14), ("sans-serif", 11))
        });
        let bars: Vec<_> = bars.collect();
        chart
            .draw_series(bars)?
            .label(&series.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    draw_legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

fn draw_legend<'a, Axes: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Axes>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn std::error::Error>> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(0xcc, 0xcc, 0xcc))
        .draw()?;
    Ok(())
}

/// The range of the values, wider by `margin` on each side.
fn bounds(values: impl Iterator<Item = f64>, margin: f64) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high <= 0.0 { (1.0, 10.0) } else { (low / margin, high * margin) }
}

/// A label: 500 · 20 k · 1.5 M.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e6 => (value / 1e6, " M"),
        value if value >= 1e4 => (value / 1e3, " k"),
        value => (value, ""),
    };
    let text = if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::{Figure, Panel, Series, draw, short};

    #[test]
    fn a_figure_has_its_text_and_needs_no_font() {
        let series = |name: &str| Series { name: name.into(), points: vec![(1.0, 30_000.0), (96.0, 900.0)] };
        let panel = Panel {
            title: "nginx".into(),
            x_label: "clients".into(),
            y_label: "requests/s".into(),
            series: vec![series("kernel"), series("paths"), Series::default()],
            ..Panel::default()
        };
        let bars = Panel { categories: vec!["1 KB".into(), "50 KB".into()], ..panel.clone() };
        let figure = Figure { title: "web".into(), panels: vec![panel, bars, Panel::default()] };
        let file = std::env::temp_dir().join(format!("scoutline-plot-{}.svg", std::process::id()));
        draw(&figure, &file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for word in ["nginx", "clients", "requests/s", "kernel", "paths", "<polyline", "50 KB"] {
            assert!(text.contains(word), "{word} is missing in:\n{text}");
        }
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(short(500.0), "500");
        assert_eq!(short(20_000.0), "20 k");
        assert_eq!(short(2.0), "2");
        assert_eq!(short(1_500_000.0), "1.5 M");
    }
}
