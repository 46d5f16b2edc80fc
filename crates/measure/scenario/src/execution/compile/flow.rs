//! Compiles the statements of users to operations.

use super::{CompileError, CompiledPart, Compiler, to_u16};
use crate::{
    ast::{self, PaceDef, Statement},
    execution::{
        checks::CompiledCondition,
        meeting_point::MeetingPoint,
        program::{Op, Pc, UserProgram, WaitTime},
    },
};
use fathom_model::steps::StepKind;

/// The target of a jump before it is known.
const UNRESOLVED: Pc = Pc::MAX;

impl<'t> Compiler<'t> {
    pub(super) fn part(&mut self, part: &'t ast::PartDef) -> Result<(), CompileError> {
        let begin = self.next_pc()?;
        self.used.clear();
        self.statements(&part.body)?;
        self.ops.push(Op::Return);
        let sets = std::mem::take(&mut self.used);
        self.parts.insert(&part.name.text, CompiledPart { begin, sets });
        Ok(())
    }

    pub(super) fn user(&mut self, user: &'t ast::UserDef) -> Result<UserProgram, CompileError> {
        self.used.clear();
        let begin = self.next_pc()?;
        for variable in &self.scenario.variables {
            self.variable(variable)?;
        }
        if let Some(setup) = &user.setup {
            self.statements(&setup.body)?;
        }
        let iterate = self.next_pc()?;
        self.ops.push(Op::BeginIteration);
        self.statements(&user.body)?;
        self.ops.push(Op::EndIteration { pace: user.pace.as_ref().map(pace) });
        let teardown = self.next_pc()?;
        self.ops.push(Op::Teardown);
        if let Some(teardown) = &user.teardown {
            self.statements(&teardown.body)?;
        }
        let leave = self.next_pc()?;
        self.ops.push(Op::Leave);
        let on_failure = self.failure_action(user.on_failure.as_ref());
        let sets = std::mem::take(&mut self.used).into_iter().collect();
        Ok(UserProgram { begin, iterate, teardown, leave, on_failure, sets })
    }

    fn statements(&mut self, body: &'t [Statement]) -> Result<(), CompileError> {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &'t Statement) -> Result<(), CompileError> {
        match statement {
            Statement::Step(step) => {
                let step = self.step(step)?;
                self.ops.push(Op::Send(step));
            }
            Statement::Transaction(transaction) => {
                let record = self.record(&transaction.name.text, StepKind::Transaction)?;
                self.ops.push(Op::BeginTransaction(record));
                self.statements(&transaction.body)?;
                self.ops.push(Op::EndTransaction);
            }
            Statement::Think(think) => self.ops.push(Op::Sleep(wait(&think.time))),
            Statement::Meet(meet) => {
                self.meeting_points.push(MeetingPoint::new(meet.users.value, meet.within.value));
                self.ops.push(Op::Meet(to_u16(self.meeting_points.len() - 1, "65,535 meetings")?));
            }
            Statement::Repeat(repeat) => {
                let most = repeat.max.as_ref().map_or(repeat.min.value, |max| max.value);
                self.repeat_loop((repeat.min.value, most), None, repeat.pace.as_ref(), &repeat.body)?;
            }
            Statement::While(each) => {
                let most = each.max.as_ref().map_or(u64::MAX, |max| max.value);
                let condition = self.condition(&each.condition)?;
                self.repeat_loop((most, most), Some(condition), each.pace.as_ref(), &each.body)?;
            }
            Statement::If(choice) => self.choice(choice)?,
            Statement::Chance(chance) => {
                let perhaps = self.ops.len();
                self.ops.push(Op::JumpByChance { share: chance.share.value / 100.0, to: UNRESOLVED });
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

    fn variable(&mut self, variable: &ast::VariableDef) -> Result<(), CompileError> {
        let text = self.plain(&variable.value)?;
        let slot = self.slot(&variable.name.text)?;
        self.ops.push(Op::Set { slot, text });
        Ok(())
    }

    fn repeat_loop(
        &mut self,
        (least, most): (u64, u64),
        condition: Option<CompiledCondition>,
        pace_of: Option<&PaceDef>,
        body: &'t [Statement],
    ) -> Result<(), CompileError> {
        let enter = self.ops.len();
        self.ops.push(Op::BeginLoop { least, most, exit: UNRESOLVED });
        let begin = self.next_pc()?;
        let unless = self.ops.len();
        let is_conditional = condition.is_some();
        if let Some(condition) = condition {
            self.ops.push(Op::JumpUnless { condition, to: UNRESOLVED });
        }
        self.statements(body)?;
        self.ops.push(Op::EndRound { begin, pace: pace_of.map(pace) });
        let exit = self.next_pc()?;
        self.ops.push(Op::EndLoop);
        self.patch_jump(enter, exit);
        if is_conditional {
            self.patch_jump(unless, exit);
        }
        Ok(())
    }

    fn choice(&mut self, choice: &'t ast::If) -> Result<(), CompileError> {
        let mut ends = Vec::new();
        for branch in &choice.branches {
            let condition = self.condition(&branch.condition)?;
            let unless = self.ops.len();
            self.ops.push(Op::JumpUnless { condition, to: UNRESOLVED });
            self.statements(&branch.body)?;
            ends.push(self.ops.len());
            self.ops.push(Op::Jump(UNRESOLVED));
            let next = self.next_pc()?;
            self.patch_jump(unless, next);
        }
        if let Some(otherwise) = &choice.otherwise {
            self.statements(&otherwise.body)?;
        }
        let end = self.next_pc()?;
        for at in ends {
            self.patch_jump(at, end);
        }
        Ok(())
    }

    /// Compiles the body of a branch and its alternative, to which `fork` jumps.
    fn otherwise(
        &mut self,
        fork: usize,
        body: &'t [Statement],
        otherwise: Option<&'t ast::Section>,
    ) -> Result<(), CompileError> {
        self.statements(body)?;
        let jump = self.ops.len();
        if otherwise.is_some() {
            self.ops.push(Op::Jump(UNRESOLVED));
        }
        let instead = self.next_pc()?;
        self.patch_jump(fork, instead);
        if let Some(otherwise) = otherwise {
            self.statements(&otherwise.body)?;
            let end = self.next_pc()?;
            self.patch_jump(jump, end);
        }
        Ok(())
    }

    /// Sets the target of a jump.
    fn patch_jump(&mut self, op: usize, place: Pc) {
        match &mut self.ops[op] {
            Op::BeginLoop { exit: to, .. } | Op::JumpUnless { to, .. } | Op::JumpByChance { to, .. } | Op::Jump(to) => {
                *to = place;
            }
            other => unreachable!("{other:?} jumps nowhere"),
        }
    }

    fn condition(&mut self, condition: &ast::ConditionExpr) -> Result<CompiledCondition, CompileError> {
        let tests = condition.tests.iter().map(|test| self.test(test)).collect::<Result<_, _>>()?;
        Ok(CompiledCondition { is_any: condition.any, tests })
    }
}

pub(super) fn wait(wait: &ast::WaitExpr) -> WaitTime {
    match wait {
        ast::WaitExpr::Fixed(time) => WaitTime::Fixed(time.value),
        ast::WaitExpr::Uniform(low, high) => WaitTime::Uniform(low.value, high.value),
        ast::WaitExpr::Exponential(mean) => WaitTime::Exponential(mean.value),
        ast::WaitExpr::Normal(mean, deviation) => WaitTime::Normal(mean.value, deviation.value),
    }
}

fn pace(pace: &PaceDef) -> WaitTime {
    wait(&pace.time)
}
