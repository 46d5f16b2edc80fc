//! What users do one after the other: statements become operations.

use super::{CompileError, Compiler, PartAt, small};
use crate::scenario::{
    tree::{self, Pace, Statement},
    walk::{
        look::Condition,
        meeting::Meeting,
        program::{Kind, Op, Pc, Wait},
    },
};
use fathom_model::steps::StepKind;

/// Where a jump goes before its place is known.
const LATER: Pc = Pc::MAX;

impl<'t> Compiler<'t> {
    pub(super) fn part(&mut self, part: &'t tree::Part) -> Result<(), CompileError> {
        let begin = self.here()?;
        self.used.clear();
        self.statements(&part.body)?;
        self.ops.push(Op::Return);
        let sets = std::mem::take(&mut self.used);
        self.parts.insert(&part.name.text, PartAt { begin, sets });
        Ok(())
    }

    pub(super) fn user(&mut self, user: &'t tree::User) -> Result<Kind, CompileError> {
        self.used.clear();
        let begin = self.here()?;
        for variable in &self.scenario.lets {
            self.variable(variable)?;
        }
        if let Some(setup) = &user.setup {
            self.statements(&setup.body)?;
        }
        let iterate = self.here()?;
        self.ops.push(Op::Iterate);
        self.statements(&user.body)?;
        self.ops.push(Op::Iterated { pace: user.pace.as_ref().map(pace) });
        let teardown = self.here()?;
        self.ops.push(Op::Teardown);
        if let Some(teardown) = &user.teardown {
            self.statements(&teardown.body)?;
        }
        let leave = self.here()?;
        self.ops.push(Op::Leave);
        let on_failure = self.way(user.on_failure.as_ref());
        let sets = std::mem::take(&mut self.used).into_iter().collect();
        Ok(Kind { begin, iterate, teardown, leave, on_failure, sets })
    }

    fn statements(&mut self, body: &'t [Statement]) -> Result<(), CompileError> {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &'t Statement) -> Result<(), CompileError> {
        match statement {
            Statement::Step(step) => {
                let step = self.step(step)?;
                self.ops.push(Op::Ask(step));
            }
            Statement::Transaction(transaction) => {
                let record = self.record(&transaction.name.text, StepKind::Transaction)?;
                self.ops.push(Op::Begin(record));
                self.statements(&transaction.body)?;
                self.ops.push(Op::End);
            }
            Statement::Think(think) => self.ops.push(Op::Rest(wait(&think.time))),
            Statement::Meet(meet) => {
                self.meetings.push(Meeting::new(meet.users.value, meet.within.value));
                self.ops.push(Op::Meet(small(self.meetings.len() - 1, "65,535 meetings")?));
            }
            Statement::Repeat(repeat) => {
                let most = repeat.max.as_ref().map_or(repeat.min.value, |max| max.value);
                self.rounds((repeat.min.value, most), None, (repeat.pace.as_ref(), &repeat.body))?;
            }
            Statement::While(each) => {
                let most = each.max.as_ref().map_or(u64::MAX, |max| max.value);
                let condition = self.condition(&each.condition)?;
                self.rounds((most, most), Some(condition), (each.pace.as_ref(), &each.body))?;
            }
            Statement::If(choice) => self.choice(choice)?,
            Statement::Chance(chance) => {
                let perhaps = self.ops.len();
                self.ops.push(Op::Perhaps { share: chance.share.value / 100.0, to: LATER });
                self.otherwise(perhaps, &chance.body, chance.otherwise.as_ref())?;
            }
            Statement::Do(part) => {
                let at = self.parts.get(part.name.text.as_str()).ok_or_else(|| CompileError::Text {
                    what: format!("there is no part `{}` above this line", part.name.text),
                    span: part.span,
                })?;
                self.used.extend(&at.sets);
                self.ops.push(Op::Call(at.begin));
            }
            Statement::Let(variable) => self.variable(variable)?,
        }
        Ok(())
    }

    fn variable(&mut self, variable: &tree::Let) -> Result<(), CompileError> {
        let text = self.plain(&variable.value)?;
        let slot = self.slot(&variable.name.text)?;
        self.ops.push(Op::Set { slot, text });
        Ok(())
    }

    fn rounds(
        &mut self,
        (least, most): (u64, u64),
        condition: Option<Condition>,
        (pace_of, body): (Option<&Pace>, &'t [Statement]),
    ) -> Result<(), CompileError> {
        let enter = self.ops.len();
        self.ops.push(Op::Enter { least, most, exit: LATER });
        let begin = self.here()?;
        let unless = self.ops.len();
        let is_conditional = condition.is_some();
        if let Some(condition) = condition {
            self.ops.push(Op::Unless { condition, to: LATER });
        }
        self.statements(body)?;
        self.ops.push(Op::Again { begin, pace: pace_of.map(pace) });
        let exit = self.here()?;
        self.ops.push(Op::Exit);
        self.lead(enter, exit);
        if is_conditional {
            self.lead(unless, exit);
        }
        Ok(())
    }

    fn choice(&mut self, choice: &'t tree::If) -> Result<(), CompileError> {
        let mut ends = Vec::new();
        for branch in &choice.branches {
            let condition = self.condition(&branch.condition)?;
            let unless = self.ops.len();
            self.ops.push(Op::Unless { condition, to: LATER });
            self.statements(&branch.body)?;
            ends.push(self.ops.len());
            self.ops.push(Op::Jump(LATER));
            let next = self.here()?;
            self.lead(unless, next);
        }
        if let Some(otherwise) = &choice.otherwise {
            self.statements(&otherwise.body)?;
        }
        let end = self.here()?;
        for at in ends {
            self.lead(at, end);
        }
        Ok(())
    }

    /// The body of a branch and what is done instead of it; `fork` jumps there.
    fn otherwise(
        &mut self,
        fork: usize,
        body: &'t [Statement],
        otherwise: Option<&'t tree::Section>,
    ) -> Result<(), CompileError> {
        self.statements(body)?;
        let jump = self.ops.len();
        if otherwise.is_some() {
            self.ops.push(Op::Jump(LATER));
        }
        let instead = self.here()?;
        self.lead(fork, instead);
        if let Some(otherwise) = otherwise {
            self.statements(&otherwise.body)?;
            let end = self.here()?;
            self.lead(jump, end);
        }
        Ok(())
    }

    /// Gives a jump its place.
    fn lead(&mut self, op: usize, place: Pc) {
        match &mut self.ops[op] {
            Op::Enter { exit: to, .. } | Op::Unless { to, .. } | Op::Perhaps { to, .. } | Op::Jump(to) => *to = place,
            other => unreachable!("{other:?} jumps nowhere"),
        }
    }

    fn condition(&mut self, condition: &tree::Condition) -> Result<Condition, CompileError> {
        let tests = condition.tests.iter().map(|test| self.test(test)).collect::<Result<_, _>>()?;
        Ok(Condition { is_any: condition.any, tests })
    }
}

pub(super) fn wait(wait: &tree::Wait) -> Wait {
    match wait {
        tree::Wait::Fixed(time) => Wait::Fixed(time.value),
        tree::Wait::Uniform(low, high) => Wait::Uniform(low.value, high.value),
        tree::Wait::Exponential(mean) => Wait::Exponential(mean.value),
        tree::Wait::Normal(mean, deviation) => Wait::Normal(mean.value, deviation.value),
    }
}

fn pace(pace: &Pace) -> Wait {
    wait(&pace.time)
}
