//! Orders of the control API, and reloads from any trigger.

use admin::VipChange;
use model::Snapshot;

use super::{Running, Source};
use crate::control::Order;
use crate::exit::Refused;

impl Running {
    pub(super) async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Reload(answer) => {
                let outcome = self.reload("asked by the control API").await;
                // The client may be gone; the reload is valid all the same.
                let _ = answer.send(outcome);
            }
            Order::ChangeVips(change, answer) => {
                let outcome = self.change_vips(change).await;
                let _ = answer.send(outcome);
            }
        }
    }

    /// Changes the vips that commands add to those of the file, or detaches the kernel plane. It succeeds completely or
    /// changes nothing, like a snapshot.
    async fn change_vips(&mut self, change: VipChange) -> Result<u64, Refused> {
        let was_detached = self.detached;
        let overlay = match &change {
            VipChange::Detach => {
                self.detached = true;
                Ok(self.overlay.clone())
            }
            _ if self.detached => Err("the kernel plane was detached: `steelyard reload` attaches it again".to_owned()),
            VipChange::Add { name, document } => {
                config::parse_vip(name, document).and_then(|vip| self.overlay.with(vip, &self.wanted))
            }
            VipChange::Remove { name } => self.overlay.without(name, &self.wanted),
        };
        let overlay = overlay.map_err(Refused::bad)?;
        let wanted = Snapshot { generation: self.control.next_generation(), ..self.wanted.clone() };
        let addresses = self.resolver.addresses();
        let files = self.files.clone();
        // The client must get the refusal of the kernel plane.
        let kept_vips = std::mem::take(&mut self.keep_vips);
        if let Err(refused) = self.put_to_use(&wanted, &files, &addresses, &overlay).await {
            self.detached = was_detached;
            self.keep_vips = kept_vips;
            return Err(refused);
        }
        let generation = wanted.generation.0;
        match change {
            VipChange::Add { name, .. } => tracing::info!(vip = name, generation, "added by the control API"),
            VipChange::Remove { name } => tracing::info!(vip = name, generation, "removed by the control API"),
            VipChange::Detach => tracing::info!(generation, "the kernel plane was detached by the control API"),
        }
        self.overlay = overlay;
        Ok(generation)
    }

    pub(super) async fn reload(&mut self, why: &str) -> Result<u64, String> {
        let generation = self.control.next_generation();
        self.told.reloading();
        self.watch.reading();
        let was_detached = std::mem::take(&mut self.detached);
        let read = match &self.source {
            // A cluster sends updates by itself: this is its last one.
            Source::Cluster(_) => Ok(Snapshot { generation, ..self.wanted.clone() }.into()),
            source => source.read(generation),
        };
        let outcome = match read {
            Ok(file) => self.adopt(file).await.map_err(|refused| refused.why),
            Err(errors) => Err(errors),
        };
        self.detached = was_detached && outcome.is_err();
        match &outcome {
            Ok(()) => tracing::info!(why, generation = generation.0, "reloaded"),
            Err(errors) => {
                tracing::error!(why, "refused; the old configuration stays");
                eprintln!("{}", errors.trim_end());
            }
        }
        self.told.reloaded(&self.wanted, outcome.as_ref().err().map(String::as_str));
        self.control.note_reload(outcome.clone().err());
        outcome.map(|()| generation.0)
    }
}
