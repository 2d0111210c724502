//! The live screen.

use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;

use super::rates::{Round, Sort, round};
use super::{Sample, summary, tables};
use crate::client::Client;
use crate::failure::Failure;

/// Shows rounds until `q`, Ctrl-C or the last one.
pub(super) fn run(client: &mut Client, interval: Duration, count: Option<u64>) -> Result<(), Failure> {
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::failed(format!("no screen: {error}; try --json")))?;
    let done = rounds(&mut terminal, client, interval, count);
    ratatui::restore();
    done
}

fn rounds(
    terminal: &mut DefaultTerminal,
    client: &mut Client,
    interval: Duration,
    count: Option<u64>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("the terminal failed: {error}"));
    let mut before = Sample::take(client)?;
    let mut after = None;
    let mut sort = Sort::Cpu;
    let mut done = 0;
    loop {
        let shown = after.as_ref().unwrap_or(&before);
        let round = round(&before, shown, sort);
        terminal
            .draw(|frame| frame.render_widget(picture(&round, frame.area().height), frame.area()))
            .map_err(failed)?;
        if count.is_some_and(|count| done >= count) {
            return Ok(());
        }
        let next = Instant::now() + interval;
        loop {
            let rest = next.saturating_duration_since(Instant::now());
            if rest.is_zero() || !event::poll(rest).map_err(failed)? {
                break;
            }
            let Event::Key(key) = event::read().map_err(failed)? else { break };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            sort = match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Char('c') => Sort::Cpu,
                KeyCode::Char('p') => Sort::Packets,
                KeyCode::Char('b') => Sort::Bytes,
                _ => continue,
            };
        }
        if let Some(shown) = after.take() {
            before = shown;
        }
        after = Some(Sample::take(client)?);
        done += 1;
    }
}

/// The round as lines of text, with the headings set off.
fn picture(round: &Round, height: u16) -> Paragraph<'static> {
    let room = usize::from(height).saturating_sub(round.classes.len() + 6);
    let (classes, paths) = tables(round, room);
    let heading = Style::new().add_modifier(Modifier::REVERSED);
    let mut lines = vec![Line::from(summary(round).trim_end().to_owned()), Line::default()];
    for table in [classes, paths] {
        for (index, line) in table.to_string().lines().enumerate() {
            let line = Line::from(line.to_owned());
            lines.push(if index == 0 { line.style(heading) } else { line });
        }
        lines.push(Line::default());
    }
    lines.push(Line::from("q leave   c p b sort by CPU, packets, bytes"));
    Paragraph::new(Text::from(lines))
}
