//! The live screen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::rates::{Round, Sort, round};
use super::{Sample, summary, tables};
use crate::client::Client;
use crate::failure::Failure;

/// How often a signal is looked for while nobody types.
const SIGNAL_LOOK: Duration = Duration::from_millis(100);

/// Shows rounds until `q`, Ctrl-C, SIGTERM, SIGHUP or the last one. However it ends, the terminal is as it was.
pub(super) fn run(client: &mut Client, interval: Duration, count: Option<u64>) -> Result<(), Failure> {
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::failed(format!("no screen: {error}; try --json")))?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        // Without the handler the signal only ends us less tidily.
        let _ = signal_hook::flag::register(signal, Arc::clone(&ended));
    }
    let done = rounds(&mut terminal, client, interval, count, &ended);
    ratatui::restore();
    done
}

fn rounds(
    terminal: &mut DefaultTerminal,
    client: &mut Client,
    interval: Duration,
    count: Option<u64>,
    ended: &AtomicBool,
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
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            if rest.is_zero() {
                break;
            }
            if !event::poll(rest.min(SIGNAL_LOOK)).map_err(failed)? {
                continue;
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
