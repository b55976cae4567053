//! A chart as SVG: lines over two scales, with a title and a description for screen readers.

use std::fmt::Write;

use super::escape::Escaped;
use super::scale::Scale;

/// The most lines in a chart. The page has this number of distinct colours and dashes.
pub(super) const LINES: usize = 6;

/// The size of the picture, and the margins around its plot.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 36.0;

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
}

pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) scale: Scale,
    /// The values that get a label, with the label.
    pub(super) ticks: Vec<(f64, String)>,
}

pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// True if each point is a measurement of its own, and is drawn with a mark.
    pub(super) marks: bool,
    /// What the line shows, in words.
    pub(super) words: String,
}

impl Chart {
    /// Writes the figure. `number` makes its ids unique within the page.
    pub(super) fn write(&self, page: &mut String, number: usize) {
        let title = Escaped(&self.title);
        let _ = write!(
            page,
            "<figure>\n<figcaption>{title}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"t{number} d{number}\">\n\
             <title id=\"t{number}\">{title}</title>\n<desc id=\"d{number}\">"
        );
        let _ = write!(
            page,
            "{} over {}.",
            Escaped(self.y.name),
            Escaped(self.x.name)
        );
        for line in &self.lines {
            let _ = write!(page, " {}: {}.", Escaped(&line.name), Escaped(&line.words));
        }
        page.push_str("</desc>\n");
        self.axes(page);
        for (at, line) in self.lines.iter().enumerate() {
            self.line(page, at, line);
        }
        page.push_str("</svg>\n<ul class=\"key\">\n");
        for (at, line) in self.lines.iter().enumerate() {
            let _ = writeln!(
                page,
                "<li><svg viewBox=\"0 0 34 8\" aria-hidden=\"true\">\
                 <path class=\"line s{at}\" d=\"M0 4H34\"/></svg>{}</li>",
                Escaped(&line.name)
            );
        }
        page.push_str("</ul>\n</figure>\n");
    }

    fn axes(&self, page: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, label) in &self.y.ticks {
            let y = self.y_of(*value);
            let _ = writeln!(
                page,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>\
                 <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                y + 3.5,
                Escaped(label)
            );
        }
        for (value, label) in &self.x.ticks {
            let x = self.x_of(*value);
            let _ = writeln!(
                page,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
                 <text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 14.0,
                Escaped(label)
            );
        }
        let _ = writeln!(
            page,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
             <text class=\"name\" x=\"2\" y=\"11\">{}</text>\
             <text class=\"name end\" x=\"{right}\" y=\"{:.1}\">{}</text>",
            Escaped(self.y.name),
            HEIGHT - 5.0,
            Escaped(self.x.name)
        );
    }

    fn line(&self, page: &mut String, at: usize, line: &Line) {
        let places = line
            .points
            .iter()
            .map(|(x, y)| (self.x_of(*x), self.y_of(*y)));
        let places: Vec<(f64, f64)> = places.collect();
        let _ = write!(page, "<path class=\"line s{at}\" d=\"");
        for (index, (x, y)) in places.iter().enumerate() {
            let _ = write!(page, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        page.push_str("\"/>\n");
        for (x, y) in places.iter().filter(|_| line.marks) {
            let _ = writeln!(
                page,
                "<circle class=\"mark s{at}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>"
            );
        }
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + self.x.scale.at(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y_of(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.scale.at(value) * (HEIGHT - TOP - BOTTOM)
    }
}
