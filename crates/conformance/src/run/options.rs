//! TCP options of what left, against the script's.

use crate::packet::SeenTcp;
use crate::script::{Options, TcpOption};

use super::expect::Compared;
use super::flow::Flow;

/// The options as a list, in the script's numbers; padding left out.
fn options_of(bytes: &[u8], flow: &Flow) -> Option<Vec<TcpOption>> {
    let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let mut list = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let kind = bytes[at];
        match kind {
            0 => return Some(list),
            1 => {
                at += 1;
                continue;
            }
            _ => {}
        }
        let len = usize::from(*bytes.get(at + 1)?);
        let content = bytes.get(at + 2..at + len)?;
        list.push(match (kind, content.len()) {
            (2, 2) => TcpOption::Mss(Some(u16::from_be_bytes([content[0], content[1]]))),
            (3, 1) => TcpOption::WindowScale(Some(content[0])),
            (4, 0) => TcpOption::SackPermitted,
            (5, 8 | 16 | 24 | 32) => {
                let edge = |index: usize| Some(flow.remote_script(word(at + 2 + 4 * index)?));
                let block = |block: usize| Some((edge(2 * block)?, edge(2 * block + 1)?));
                TcpOption::Sack((0..content.len() / 8).map(block).collect::<Option<Vec<_>>>()?)
            }
            (8, 8) => TcpOption::Timestamps(word(at + 2), word(at + 6)),
            _ => TcpOption::Other(kind, content.to_vec()),
        });
        at += len;
    }
    Some(list)
}

/// The options in the script's words.
pub(super) fn option_text(bytes: &[u8], flow: &Flow) -> String {
    let Some(list) = options_of(bytes, flow) else { return "broken".into() };
    let texts: Vec<String> = list
        .iter()
        .map(|option| match option {
            TcpOption::Mss(Some(mss)) => format!("mss {mss}"),
            TcpOption::WindowScale(Some(shift)) => format!("wscale {shift}"),
            TcpOption::SackPermitted => "sackOK".into(),
            TcpOption::Sack(blocks) => {
                blocks.iter().fold("sack".to_owned(), |text, (left, right)| format!("{text} {left}:{right}"))
            }
            TcpOption::Timestamps(Some(value), Some(echo)) => {
                let script = |(script, live): &(u32, u32)| value.wrapping_sub(*live).wrapping_add(*script);
                format!("TS val {} ecr {echo}", flow.timestamps.first().map_or(*value, script))
            }
            other => format!("{other:?}"),
        })
        .collect();
    texts.join(",")
}

/// Whether a segment has the options that the script names, and no others. In which order they stand, and how they are
/// padded, is the sender's choice.
pub(super) fn compare_options(
    expected: &Options,
    seen: &SeenTcp,
    flow: &mut Flow,
    ticks: Option<i32>,
) -> Compared {
    let Some(found) = options_of(&seen.options, flow) else { return Err("broken options".into()) };
    let Options::List(expected) = expected else { return Ok(()) };
    let wanted: Vec<&TcpOption> =
        expected.iter().filter(|option| !matches!(option, TcpOption::Nop | TcpOption::End)).collect();
    if wanted.len() != found.len() {
        return Err("not these options".into());
    }
    for option in wanted {
        let like =
            found.iter().find(|found| std::mem::discriminant(*found) == std::mem::discriminant(option));
        let equal = match (option, like) {
            (TcpOption::Mss(None) | TcpOption::WindowScale(None), Some(_)) => true,
            (
                TcpOption::Timestamps(value, echo),
                Some(TcpOption::Timestamps(Some(live), Some(live_echo))),
            ) => {
                echo.is_none_or(|echo| echo == *live_echo)
                    && value.is_none_or(|value| timestamp_fits(value, *live, flow, ticks))
            }
            (option, Some(found)) => option == found,
            (_, None) => false,
        };
        if !equal {
            return Err(format!("not {option:?}"));
        }
    }
    Ok(())
}

/// Whether a timestamp is what the script says, within so many ticks of a millisecond; `None`: whatever it is.
fn timestamp_fits(script: u32, live: u32, flow: &mut Flow, ticks: Option<i32>) -> bool {
    let fits = match (flow.timestamps.first(), ticks) {
        (Some((known, known_live)), Some(ticks)) => {
            let passed = live.wrapping_sub(*known_live);
            (passed.wrapping_sub(script.wrapping_sub(*known)) as i32).abs() <= ticks
        }
        _ => true,
    };
    flow.timestamps.push((script, live));
    fits
}
